"""
Tokens of AWS for RDS and Aurora: IAM database authentication.

Runs where a connection is made. Invariant: a token is signed for each connection, in this process, for the very
host, port and role; AWS itself is asked only where boto3's own credentials have to be renewed.

Source: "Connecting to your DB instance using IAM authentication" in the user guide of Amazon RDS. A token is a
presigned URL of service ``rds-db`` without its scheme, and is valid for 15 minutes.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Any

from ..postgres.passwords import source_missing
from ..postgres.postgres_url import Login
from .client_library import client_library, quiet

_REGION_IN_HOST = re.compile(r"\.([a-z]{2}(?:-[a-z]+)+-\d)\.rds\.amazonaws\.com(?:\.cn)?$", re.IGNORECASE)


def aws_rds(login: Login) -> str:
    """
    A token for the role, signed with the credentials that boto3 finds (environment, profile, instance or task role).

    The host must be the endpoint's own name, because it is signed. Its region is read from it, or else from
    ``AWS_REGION`` or ``AWS_DEFAULT_REGION``.

    :raises ConfigurationError: PASSWORD_SOURCE_MISSING, without boto3, or where no region is known.
    """
    found = _REGION_IN_HOST.search(login.host)
    region = found[1].lower() if found else os.environ.get("AWS_REGION")
    if login.refused:
        # Credentials that were revoked are not renewed before they expire.
        _client.cache_clear()
    client_library("boto3", "boto3", "aws_rds")
    # At DEBUG they log signatures, what is sent to STS and other services, and the credentials that these answer with;
    # and the address of a container's credentials, which no other process may know.
    with quiet("boto3", "botocore", "urllib3"):
        token: str = _client(region, os.getpid()).generate_db_auth_token(login.host, login.port, login.user)
    return token


# Making a client reads a hundred files and takes longer than a commit. A forked process makes its own.
@lru_cache(maxsize=8)
def _client(region: str | None, _pid: int) -> Any:
    boto3 = client_library("boto3", "boto3", "aws_rds")
    session = boto3.session.Session(region_name=region)
    if session.region_name is None:
        raise source_missing(
            "AWS signs tokens for one region, and neither the host in url nor the environment names one.",
            "Let url name the endpoint as RDS shows it (....eu-west-1.rds.amazonaws.com), or set AWS_REGION for every "
            "process that connects.",
        )
    return session.client("rds")
