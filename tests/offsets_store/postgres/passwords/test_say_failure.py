"""What is said of a password source that failed."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgonce.offsets_store.postgres.passwords.say_failure import safe_words

JWT = "eyJ0eXAiOiJKV1QiLCJhbGciOiJSUzI1NiJ9.eyJvaWQiOiJ6cTcifQ.c2lnbmF0dXJlMTIz"


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {JWT}",
        f"got {JWT} from the server",
        "Authorization: Basic zq7",
        '{"client_secret": "zq7 with spaces", "grant": 1}',
        "client_secret=zq7&grant_type=client_credentials",
        "{'access_token': 'zq7'}",
        "the password is zq7",
        "PGPASSWORD=zq7 psql",
        "https://user:zq7@host/path",
        "https://host/path?X-Amz-Signature=zq7&X-Amz-Credential=zq7",
        "postgresql://u:zq7@h/d",
        "AKIAIOSFODNN7EXAMPLEzq7",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzq7EXAMPLEKEY",
        "-----BEGIN PRIVATE KEY-----\nzq7\n-----END PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\nzq7",
        "aws_session_token = zq7",
        "the vault said: token=two words and zq7",
        "password: 'it's zq7'",
    ],
)
def test_what_looks_like_a_secret_is_hidden(text):
    """By its name, by its place in an address or header, or because it looks like nothing else."""
    assert "zq7" not in safe_words(f"before {text}")
    assert JWT.rsplit(".", 1)[1] not in safe_words(text)
    assert safe_words(f"before {text}").startswith("before ")


@pytest.mark.parametrize(
    "text",
    [
        "Unable to locate credentials",
        "DefaultAzureCredential failed to retrieve a token from the included credentials.",
        "could not connect to sts.eu-west-1.amazonaws.com within 5 s",
        "An error occurred (AccessDenied) when calling the AssumeRole operation",
        "[Errno 2] No such file or directory: '/var/run/secrets/eks.amazonaws.com/token'",
        "invalid_client: client is unknown",
    ],
)
def test_what_helps_is_said(text):
    """Usual complaints of the clouds' libraries come through."""
    assert safe_words(text) == text


def test_secrets_of_the_environment_are_hidden_wherever_they_stand(monkeypatch):
    """Values of variables whose names say that they are secret."""
    monkeypatch.setenv("COMPANY_API_KEY", "just-words")
    assert safe_words("key just-words and other-words") == "key *** and other-words"


@given(st.binary(min_size=24, max_size=200), st.sampled_from(["standard", "url", "hex"]))
def test_no_long_random_text_gets_through(data, form):
    """Whatever way 24 random bytes or more are written, at most a piece of them is shown."""
    encoded = {"standard": base64.b64encode, "url": base64.urlsafe_b64encode, "hex": lambda d: d.hex().encode()}[form](
        data
    )
    text = encoded.decode()
    # What is all letters or all digits by chance, or by choice, is a word or a number.
    if any(c.isdigit() for c in text) and any(c.isalpha() for c in text) and not text.startswith("/"):
        assert text not in safe_words(json.dumps({"message": f"x {text} y"}))


def test_a_long_complaint_is_cut():
    """An error is for people."""
    assert len(safe_words("many words " * 1000)) < 400
