"""Tokens of AWS: what they say is what RDS checks; that they are signed is botocore's doing."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from urllib.parse import parse_qsl, urlsplit

import pytest
from support.cloud_tokens import example_module, logged_token, token_of
from support.http_server import serving

from pgonce import Login
from pgonce.offsets_store.errors import ConnectError
from pgonce.offsets_store.postgres.connect import connect
from pgonce.offsets_store.postgres.postgres_url import PostgresUrl

KEY_ID, KEY, SESSION = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "session/token+with=signs"
HOST = "orders.abc123.eu-west-1.rds.amazonaws.com"


@pytest.fixture
def aws(monkeypatch, tmp_path):
    """The module, where the environment has credentials."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return example_module("aws_token", monkeypatch)


def checked(token: str, login: Login, region: str, key_id: str = KEY_ID) -> dict[str, str]:
    """The parts of a token, after all has been checked that RDS checks, but for the signature."""
    assert "://" not in token
    where = urlsplit(f"https://{token}")
    assert (where.hostname, where.port, where.path) == (login.host.lower(), login.port, "/")
    query = parse_qsl(where.query, strict_parsing=True)
    given = dict(query)
    assert len(given) == len(query)
    assert (given["Action"], given["DBUser"]) == ("connect", login.user)
    assert given["X-Amz-Algorithm"] == "AWS4-HMAC-SHA256"
    assert given["X-Amz-SignedHeaders"] == "host"
    assert int(given["X-Amz-Expires"]) <= 900
    at = datetime.strptime(given["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    assert abs(datetime.now(timezone.utc) - at) < timedelta(minutes=5)
    assert given["X-Amz-Credential"] == f"{key_id}/{at:%Y%m%d}/{region}/rds-db/aws4_request"
    assert re.fullmatch("[0-9a-f]{64}", given["X-Amz-Signature"])
    return given


@pytest.mark.parametrize(
    "login",
    [
        Login(HOST, 5432, "streamer", "shop"),
        Login("shop.cluster-ro-x.us-gov-west-1.rds.amazonaws.com", 6432, "a role+with/odd=signs é&", "shop"),
        Login("db.abc.cn-north-1.rds.amazonaws.com.cn", 5432, "streamer", "shop"),
    ],
)
def test_a_token_is_signed_for_host_port_role_and_region(aws, login):
    """They are those that are connected to; the region is that of the host's name."""
    region = login.host.split(".rds.")[0].rsplit(".", 1)[1]
    checked(token_of(aws, login), login, region)


def test_the_region_of_another_name_comes_from_the_environment(aws, monkeypatch):
    """A host that is not named as RDS names it says nothing of a region."""
    login = Login("db.internal", 5432, "streamer", "shop")
    monkeypatch.setenv("AWS_REGION", "ap-south-1")
    checked(token_of(aws, login), login, "ap-south-1")
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "sa-east-1")
    aws.client.cache_clear()
    checked(token_of(aws, login), login, "sa-east-1")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    aws.client.cache_clear()
    with pytest.raises(ConnectError, match="PASSWORD_SOURCE_FAILED.*NoRegionError"):
        token_of(aws, login)


def test_credentials_that_were_changed_are_read_again_after_a_refusal(aws, monkeypatch):
    """A token that is refused is followed by one that is signed with what boto3 finds now."""
    login = Login(HOST, 5432, "streamer", "shop")
    checked(token_of(aws, login), login, "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAANOTHER")
    checked(token_of(aws, login), login, "eu-west-1")
    again = Login(HOST, 5432, "streamer", "shop", refused=True)
    checked(token_of(aws, again), again, "eu-west-1", "AKIAANOTHER")


def test_without_credentials_the_error_says_so(aws, monkeypatch):
    """By the type of the error of boto3."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    url = PostgresUrl(f"host={HOST} user=streamer", "aws_token:password")
    with pytest.raises(ConnectError, match="PASSWORD_SOURCE_FAILED.*NoCredentialsError"):
        connect(url)


def test_no_credential_and_no_token_is_in_the_logs(aws, monkeypatch):
    """At DEBUG, botocore would log the credentials that an instance's metadata service gives, and the signature."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(name)
    folder = "/latest/meta-data/iam/security-credentials/"
    in_an_hour = (datetime.now(timezone.utc) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    given = {"Code": "Success", "AccessKeyId": KEY_ID, "SecretAccessKey": "zq7key", "Token": "zq7session"}
    routes = {
        ("PUT", "/latest/api/token"): lambda _: (200, "zq7metadata"),
        ("GET", folder): lambda _: (200, "streamer"),
        ("GET", f"{folder}streamer"): lambda _: (200, {**given, "Expiration": in_an_hour}),
    }
    login = Login(HOST, 5432, "streamer", "shop")
    with serving(routes) as server:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{server.url}/")
        token, logs = logged_token(aws, login)
    assert checked(token, login, "eu-west-1")["X-Amz-Security-Token"] == "zq7session"
    secrets = ("zq7", token.rsplit("=", 1)[1])
    assert [line for line in logs.splitlines() if any(secret in line for secret in secrets)] == []
    assert "everything is logged" in logs
