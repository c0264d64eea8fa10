"""Tokens of Microsoft Entra, asked of a server that checks requests as Azure's identity endpoints do."""

from __future__ import annotations

import time

import pytest
from support.cloud_tokens import example_module, logged_token, token_of
from support.http_server import serving

from pgonce import Login

HEADER = "zq7-identity-header"


@pytest.fixture
def azure(monkeypatch, tmp_path):
    """The module, where the environment has no credentials."""
    for name in ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    return example_module("azure_token", monkeypatch)


@pytest.fixture
def server(monkeypatch):
    """
    The endpoint of a managed identity, as an App Service or a Function has it.

    It demands the version, the resource and the secret header of "How to use managed identities for App Service".
    """
    given: list[str] = []

    def answer(request):
        if request.headers.get("x-identity-header") != HEADER or request.query.get("api-version") != "2019-08-01":
            return 401, {"message": "no"}
        given.append(f"zq7token{len(given)}")
        expires = str(int(time.time()) + 3600)
        resource = request.query["resource"]
        return 200, {"access_token": given[-1], "expires_on": expires, "resource": resource, "token_type": "Bearer"}

    with serving({("GET", "/msi/token"): answer}) as found:
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{found.url}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", HEADER)
        yield found


@pytest.mark.parametrize(
    ("host", "resource"),
    [
        ("shop.postgres.database.azure.com", "https://ossrdbms-aad.database.windows.net"),
        ("shop.internal", "https://ossrdbms-aad.database.windows.net"),
        ("shop.postgres.database.chinacloudapi.cn", "https://ossrdbms-aad.database.chinacloudapi.cn"),
        ("shop.postgres.database.usgovcloudapi.net", "https://ossrdbms-aad.database.usgovcloudapi.net"),
    ],
)
def test_a_token_is_asked_for_databases_alone(azure, server, host, resource):
    """The resource is that of databases, in the cloud in which the host is."""
    assert token_of(azure, Login(host, 5432, "streamer", "shop")) == "zq7token0"
    assert [request.query["resource"] for request in server.asked("/msi/token")] == [resource]


def test_a_token_is_asked_for_again_after_a_refusal_and_not_before(azure, server):
    """Azure's library keeps it while it is valid; if Postgres refuses it, it makes another one."""
    login = Login("shop.postgres.database.azure.com", 5432, "streamer", "shop")
    assert [token_of(azure, login) for _ in range(3)] == ["zq7token0"] * 3
    refused = Login("shop.postgres.database.azure.com", 5432, "streamer", "shop", refused=True)
    assert token_of(azure, refused) == "zq7token1"
    assert token_of(azure, login) == "zq7token1"


def test_neither_the_token_nor_the_secret_header_is_in_the_logs(azure, server):
    """No logger of Azure's libraries shows them at DEBUG."""
    token, logs = logged_token(azure, Login("shop.postgres.database.azure.com", 5432, "streamer", "shop"))
    assert token == "zq7token0"
    assert "zq7" not in logs
    assert "everything is logged" in logs
