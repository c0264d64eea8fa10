"""Tokens of AWS: recomputed here by the rules of Signature Version 4, without AWS's own code."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from datetime import datetime, timedelta, timezone
from urllib.parse import parse_qsl, quote, urlsplit

import pytest
from support.logged_token import logged_token
from support.token_server import serving

from pgonce import Login, tokens
from pgonce.offsets_store.errors import ConfigurationError, ConnectError
from pgonce.offsets_store.postgres import tokens as ours
from pgonce.offsets_store.postgres.connect import connect
from pgonce.offsets_store.postgres.postgres_url import PostgresUrl

KEY_ID, KEY, SESSION = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "session/token+with=signs"
HOST = "orders.abc123.eu-west-1.rds.amazonaws.com"


@pytest.fixture(autouse=True)
def _credentials(monkeypatch, tmp_path):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    ours._aws_client.cache_clear()
    yield
    ours._aws_client.cache_clear()


def signature(host: str, port: int, region: str, query: list[tuple[str, str]], secret: str) -> str:
    """
    The signature of a presigned GET of service rds-db, by the steps of the AWS General Reference.

    Canonical request, string to sign, signing key, signature: "Create a signed AWS API request".
    """
    given = dict(query)
    plain = sorted((quote(name, "-_.~"), quote(value, "-_.~")) for name, value in query)
    canonical = "\n".join(
        [
            "GET",
            "/",
            "&".join(f"{name}={value}" for name, value in plain),
            f"host:{host}:{port}\n",
            "host",
            hashlib.sha256(b"").hexdigest(),
        ]
    )
    day = given["X-Amz-Date"][:8]
    scope = f"{day}/{region}/rds-db/aws4_request"
    to_sign = "\n".join(
        ["AWS4-HMAC-SHA256", given["X-Amz-Date"], scope, hashlib.sha256(canonical.encode()).hexdigest()]
    )
    key = f"AWS4{secret}".encode()
    for part in (day, region, "rds-db", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()


def checked(token: str, login: Login, region: str, secret: str = KEY) -> dict[str, str]:
    """The parts of a token, after all has been checked that RDS checks."""
    assert "://" not in token
    where = urlsplit(f"https://{token}")
    assert (where.hostname, where.port, where.path) == (login.host.lower(), login.port, "/")
    query = parse_qsl(where.query, strict_parsing=True)
    given = dict(query)
    assert len(given) == len(query)
    signed = given.pop("X-Amz-Signature")
    assert (given["Action"], given["DBUser"]) == ("connect", login.user)
    assert given["X-Amz-Algorithm"] == "AWS4-HMAC-SHA256"
    assert given["X-Amz-SignedHeaders"] == "host"
    assert int(given["X-Amz-Expires"]) <= 900
    at = datetime.strptime(given["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    assert abs(datetime.now(timezone.utc) - at) < timedelta(minutes=5)
    assert given["X-Amz-Credential"] == f"{KEY_ID}/{at:%Y%m%d}/{region}/rds-db/aws4_request"
    assert signed == signature(where.hostname, where.port, region, list(given.items()), secret)
    return given


def test_the_signing_here_is_that_of_the_reference():
    """The key that is derived here is the one that AWS's documentation derives, so the comparison means something."""
    key = b"AWS4wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
    for part in ("20150830", "us-east-1", "iam", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    assert key.hex() == "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9"


@pytest.mark.parametrize(
    "login",
    [
        Login(HOST, 5432, "streamer", "shop"),
        Login("shop.cluster-ro-x.us-gov-west-1.rds.amazonaws.com", 6432, "a role+with/odd=signs é&", "shop"),
        Login("db.abc.cn-north-1.rds.amazonaws.com.cn", 5432, "streamer", "shop"),
    ],
)
def test_a_token_is_signed_for_host_port_role_and_region(login):
    """The signature is the one that Signature Version 4 demands, over the host and port that are connected to."""
    region = login.host.split(".rds.")[0].rsplit(".", 1)[1]
    checked(tokens.aws_rds(login), login, region)


def test_temporary_credentials_send_their_session_too(monkeypatch):
    """Roles of instances, tasks and pods have them."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", SESSION)
    login = Login(HOST, 5432, "streamer", "shop")
    assert checked(tokens.aws_rds(login), login, "eu-west-1")["X-Amz-Security-Token"] == SESSION


def test_the_region_of_another_name_comes_from_the_environment(monkeypatch):
    """A host that is not named as RDS names it says nothing of a region."""
    login = Login("db.internal", 5432, "streamer", "shop")
    monkeypatch.setenv("AWS_REGION", "ap-south-1")
    checked(tokens.aws_rds(login), login, "ap-south-1")
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "sa-east-1")
    checked(tokens.aws_rds(login), login, "sa-east-1")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    ours._aws_client.cache_clear()
    with pytest.raises(ConfigurationError, match="PASSWORD_SOURCE_MISSING.*AWS_REGION"):
        tokens.aws_rds(login)


def test_credentials_that_were_changed_are_read_again_after_a_refusal(monkeypatch):
    """A token that is refused is followed by one that is signed with what boto3 finds now."""
    login = Login(HOST, 5432, "streamer", "shop")
    checked(tokens.aws_rds(login), login, "eu-west-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another secret")
    checked(tokens.aws_rds(login), login, "eu-west-1")
    again = Login(HOST, 5432, "streamer", "shop", refused=True)
    checked(tokens.aws_rds(again), again, "eu-west-1", "another secret")


def test_without_credentials_the_error_says_so(monkeypatch):
    """What boto3 says is in the error."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    url = PostgresUrl(f"host={HOST} user=streamer", "pgonce.tokens:aws_rds")
    with pytest.raises(ConnectError, match="PASSWORD_SOURCE_FAILED.*NoCredentialsError: Unable to locate credentials"):
        connect(url)


def in_an_hour() -> str:
    """When the credentials of the servers below expire."""
    return (datetime.now(timezone.utc) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


# What follows are ways to credentials. Each gives the variable that names its server, with the path that belongs there,
# and the answers of this server, as the documentation of the service has them.
def of_a_web_identity(monkeypatch, tmp_path):
    """A role of a pod: STS gives its credentials for a token in a file."""
    file = tmp_path / "web identity"
    file.write_text("zq7webidentity")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(file))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/streamer")

    def answer(request):
        assert (request.body["Action"], request.body["WebIdentityToken"]) == (
            "AssumeRoleWithWebIdentity",
            "zq7webidentity",
        )
        return (
            200,
            f"""<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
            <AssumeRoleWithWebIdentityResult><Credentials>
            <AccessKeyId>{KEY_ID}</AccessKeyId><SecretAccessKey>zq7key</SecretAccessKey>
            <SessionToken>zq7session</SessionToken><Expiration>{in_an_hour()}</Expiration>
            </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>""",
        )

    return "AWS_ENDPOINT_URL_STS", "", {("POST", "/"): answer}


def of_an_instance(monkeypatch, _):
    """A role of an instance: its metadata service gives the credentials for a token of its own."""
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    folder = "/latest/meta-data/iam/security-credentials/"
    given = {"Code": "Success", "AccessKeyId": KEY_ID, "SecretAccessKey": "zq7key", "Token": "zq7session"}
    routes = {
        ("PUT", "/latest/api/token"): lambda _: (200, "zq7metadata"),
        ("GET", folder): lambda _: (200, "streamer"),
        ("GET", f"{folder}streamer"): lambda _: (200, {**given, "Expiration": in_an_hour()}),
    }
    return "AWS_EC2_METADATA_SERVICE_ENDPOINT", "/", routes


def of_a_container(monkeypatch, _):
    """A role of a task: an address that nobody else knows gives the credentials, for a token."""
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "zq7authorization")
    given = {"AccessKeyId": KEY_ID, "SecretAccessKey": "zq7key", "Token": "zq7session"}
    path = "/v2/credentials/zq7id"
    routes = {("GET", path): lambda _: (200, {**given, "Expiration": in_an_hour()})}
    return "AWS_CONTAINER_CREDENTIALS_FULL_URI", path, routes


def of_single_sign_on(monkeypatch, tmp_path):
    """Somebody who has run `aws sso login`: the portal gives credentials for the token that this has kept."""
    portal = "https://shop.awsapps.com/start"
    kept = tmp_path / ".aws" / "sso" / "cache" / f"{hashlib.sha1(portal.encode()).hexdigest()}.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"accessToken": "zq7access", "expiresAt": in_an_hour()}))
    config = tmp_path / "config"
    of_portal = {"start_url": portal, "region": "eu-west-1", "account_id": "123456789012", "role_name": "streamer"}
    config.write_text("[default]\n" + "".join(f"sso_{name} = {value}\n" for name, value in of_portal.items()))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    given = {"accessKeyId": KEY_ID, "secretAccessKey": "zq7key", "sessionToken": "zq7session"}
    until = int(time.time() + 3600) * 1000
    routes = {("GET", "/federation/credentials"): lambda _: (200, {"roleCredentials": {**given, "expiration": until}})}
    return "AWS_ENDPOINT_URL_SSO", "", routes


@pytest.mark.parametrize(
    "source",
    [
        of_a_web_identity,
        of_an_instance,
        pytest.param(of_a_container, marks=pytest.mark.thorough),
        pytest.param(of_single_sign_on, marks=pytest.mark.thorough),
    ],
)
def test_no_credential_and_no_token_is_in_the_logs(source, monkeypatch, tmp_path):
    """At DEBUG, botocore would log what it sends for credentials, these themselves, and the signature."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    variable, path, routes = source(monkeypatch, tmp_path)
    login = Login(HOST, 5432, "streamer", "shop")
    with serving(routes) as server:
        monkeypatch.setenv(variable, f"{server.url}{path}")
        token, logs = logged_token("aws_rds", login)
    assert checked(token, login, "eu-west-1", "zq7key")["X-Amz-Security-Token"] == "zq7session"
    secrets = ("zq7", token.rsplit("=", 1)[1])
    assert [line for line in logs.splitlines() if any(secret in line for secret in secrets)] == []
    assert "everything is logged" in logs
