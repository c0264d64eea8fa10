"""Tokens of Databricks, asked of a server that checks requests as a workspace does."""

from __future__ import annotations

import base64
from uuid import UUID

import pytest
from support.cloud_tokens import example_module, logged_token, token_of
from support.http_server import serving

from pgonce import Login
from pgonce.offsets_store.errors import ConnectError

CLIENT, SECRET = "0b6f-client", "zq7secret"
UID = "11111111-2222-3333-4444-555555555555"
HOST = f"instance-{UID}.database.cloud.databricks.com"
ENDPOINT = "projects/shop/branches/main/endpoints/primary"


def of_host(host: str, *, refused: bool = False) -> Login:
    """A login at a host."""
    return Login(host, 5432, CLIENT, "databricks_postgres", refused)


@pytest.fixture
def server(monkeypatch, tmp_path):
    """
    A workspace: machine-to-machine OAuth, and what the REST API says of instances and credentials.

    A client authenticates with HTTP Basic and asks for scope all-apis; then it shows the access token.
    """
    given: list[str] = []

    def login(request):
        wanted = "Basic " + base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        is_sound = request.headers.get("authorization") == wanted
        is_sound &= request.body.get("grant_type") == "client_credentials" and "all-apis" in request.body.get(
            "scope", ""
        )
        if not is_sound:
            return 401, {"error": "invalid_client", "error_description": "Client authentication failed"}
        return 200, {"access_token": "zq7access", "token_type": "Bearer", "expires_in": 3600}

    def authorized(answer):
        def checked(request):
            is_sound = request.headers.get("authorization") == "Bearer zq7access"
            return answer(request) if is_sound else (401, {"error_code": "UNAUTHENTICATED", "message": "no"})

        return checked

    def instance(request):
        if request.query.get("uid") != UID:
            return 404, {"error_code": "NOT_FOUND", "message": "there is no such instance"}
        return 200, {"name": "shop-instance", "uid": UID, "read_write_dns": HOST}

    def credential(request):
        UUID(request.body["request_id"])
        given.append(f"zq7token for {','.join(request.body['instance_names'])} {len(given)}")
        return 200, {"token": given[-1], "expiration_time": "2099-01-01T00:00:00Z"}

    def credential_of_endpoint(request):
        given.append(f"zq7token for {request.body['endpoint']} {len(given)}")
        return 200, {"token": given[-1], "expire_time": "2099-01-01T00:00:00Z"}

    def discovery(_):
        return 200, {
            "authorization_endpoint": f"{found.url}/oidc/v1/authorize",
            "token_endpoint": f"{found.url}/oidc/v1/token",
        }

    def metadata(_):
        return 200, {"oidc_endpoint": f"{found.url}/oidc", "cloud": "aws", "workspace_id": "1"}

    routes = {
        ("GET", "/.well-known/databricks-config"): metadata,
        ("GET", "/oidc/.well-known/oauth-authorization-server"): discovery,
        ("POST", "/oidc/v1/token"): login,
        ("GET", "/api/2.0/database/instances:findByUid"): authorized(instance),
        ("POST", "/api/2.0/database/credentials"): authorized(credential),
        ("POST", "/api/2.0/postgres/credentials"): authorized(credential_of_endpoint),
    }
    with serving(routes) as found:
        for name in ("DATABRICKS_TOKEN", "DATABRICKS_CONFIG_PROFILE", "LAKEBASE_ENDPOINT"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("DATABRICKS_CONFIG_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("DATABRICKS_HOST", found.url)
        monkeypatch.setenv("DATABRICKS_CLIENT_ID", CLIENT)
        monkeypatch.setenv("DATABRICKS_CLIENT_SECRET", SECRET)
        yield found


@pytest.fixture
def databricks(monkeypatch, tmp_path):
    """The module."""
    return example_module("databricks_token", monkeypatch)


@pytest.mark.parametrize("host", [HOST, HOST.replace("instance-", "instance-ro-")])
def test_the_instance_is_known_by_its_host(databricks, server, host):
    """A token is asked for the instance whose id is in the host."""
    assert token_of(databricks, of_host(host)) == "zq7token for shop-instance 0"


def test_after_a_refusal_everything_is_asked_for_again(databricks, server):
    """It also logs in to the workspace again."""
    token_of(databricks, of_host(HOST))
    token_of(databricks, of_host(HOST, refused=True))
    assert len(server.asked("/oidc/v1/token")) == 2


def test_an_endpoint_may_be_named(databricks, server, monkeypatch):
    """By the environment, where the host is that of no instance."""
    host = "ep-cool-name.database.us-east-1.cloud.databricks.com"
    with pytest.raises(ConnectError, match="PASSWORD_SOURCE_FAILED.*NotFound"):
        token_of(databricks, of_host(host))
    monkeypatch.setenv("LAKEBASE_ENDPOINT", ENDPOINT)
    assert token_of(databricks, of_host(host)) == f"zq7token for {ENDPOINT} 0"


def test_no_logger_shows_a_secret(databricks, server):
    """At DEBUG, the loggers below the one of databricks-sdk would speak as well."""
    token, logs = logged_token(databricks, of_host(HOST))
    assert token == "zq7token for shop-instance 0"
    assert [name for name in ("zq7", "databricks.sdk") if name in logs] == []
    assert "everything is logged" in logs
