"""Tokens of Google, asked of a server that checks requests as Google's token endpoint does."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import replace

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from support.cloud_tokens import example_module, logged_token, token_of
from support.http_server import serving

from pgonce import Login

ACCOUNT = "streamer@shop.iam.gserviceaccount.com"
LOGIN = Login("10.0.0.3", 5432, "streamer@shop.iam", "shop")
SCOPE = "https://www.googleapis.com/auth/sqlservice.login"


def decoded(part: str) -> bytes:
    """A part of a JSON Web Token."""
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


@pytest.fixture(scope="module")
def key():
    """The key of a service account."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture
def server(key, tmp_path, monkeypatch):
    """
    The token endpoint: "Using OAuth 2.0 for Server to Server Applications" says what a request must hold.

    A signed assertion (RS256) of the account, for Google, with the scope, valid for an hour at most.
    """
    given: list[str] = []

    def answer(request):
        if request.body.get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer":
            return 400, {"error": "unsupported_grant_type"}
        header, claims, signature = request.body["assertion"].split(".")
        try:
            signed = f"{header}.{claims}".encode()
            key.public_key().verify(decoded(signature), signed, padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            return 400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
        said = json.loads(decoded(claims))
        is_sound = (
            json.loads(decoded(header))["alg"] == "RS256"
            and said["iss"] == ACCOUNT
            and said["aud"] == "https://oauth2.googleapis.com/token"
            and said["scope"] == SCOPE
            and said["exp"] - said["iat"] <= 3600
            and abs(said["iat"] - time.time()) < 300
        )
        if not is_sound:
            return 400, {"error": "invalid_grant", "claims": said}
        given.append(f"zq7token{len(given)}")
        return 200, {"access_token": given[-1], "expires_in": 3599, "token_type": "Bearer"}

    with serving({("POST", "/token"): answer}) as found:
        _account(key, found.url, tmp_path, monkeypatch)
        yield found


@pytest.fixture
def google(monkeypatch, tmp_path):
    """The module."""
    return example_module("google_token", monkeypatch)


def _account(key, url, tmp_path, monkeypatch) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    file = tmp_path / "account.json"
    file.write_text(
        json.dumps(
            {
                "type": "service_account",
                "project_id": "shop",
                "private_key_id": "zq7",
                "private_key": pem,
                "client_email": ACCOUNT,
                "client_id": "1",
                "token_uri": f"{url}/token",
            }
        )
    )
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))


def test_a_token_is_asked_for_logins_to_databases_alone(google, server):
    """The assertion is signed, and its scope is that of logins."""
    assert token_of(google, LOGIN) == "zq7token0"
    assert len(server.asked("/token")) == 1


def test_a_token_is_asked_for_again_after_a_refusal_and_not_before(google, server):
    """Google's library keeps it while it is valid; if Postgres refuses it, it makes another one."""
    assert [token_of(google, LOGIN) for _ in range(3)] == ["zq7token0"] * 3
    assert token_of(google, replace(LOGIN, refused=True)) == "zq7token1"
    assert token_of(google, LOGIN) == "zq7token1"


def test_neither_the_token_nor_what_is_sent_for_it_is_in_the_logs(google, server):
    """At DEBUG, google-auth would log the assertion, with which anybody could get a token for an hour."""
    token, logs = logged_token(google, LOGIN)
    (asked,) = server.asked("/token")
    assert [secret for secret in (token, asked.body["assertion"]) if secret in logs] == []
    assert "everything is logged" in logs
