"""
Tokens of clouds in the place of passwords: AWS, Azure, Databricks and Google.

Runs where a connection is made. Invariant: a client library is imported only when its function is called, in this
process. pgonce holds no token: AWS and Databricks make one for each connection, and the libraries of the others hold
theirs in memory until shortly before it expires.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib import import_module
from threading import Lock
from typing import Any

from .passwords import source_missing
from .postgres_url import Login

# Source: "Connecting to your DB instance using IAM authentication" in the user guide of Amazon RDS. A token is a
# presigned URL of service ``rds-db`` without its scheme, and is valid for 15 minutes. AWS itself is asked only where
# boto3's own credentials have to be renewed.
_AWS_REGION = re.compile(r"\.([a-z]{2}(?:-[a-z]+)+-\d)\.rds\.amazonaws\.com(?:\.cn)?$", re.IGNORECASE)


def aws_rds(login: Login) -> str:
    """
    A token for the role, signed with the credentials that boto3 finds (environment, profile, instance or task role).

    The host must be the endpoint's own name, because it is signed. Its region is read from it, or else from
    ``AWS_REGION`` or ``AWS_DEFAULT_REGION``.

    :raises ConfigurationError: PASSWORD_SOURCE_MISSING, without boto3, or where no region is known.
    """
    found = _AWS_REGION.search(login.host)
    region = found[1].lower() if found else os.environ.get("AWS_REGION")
    if login.refused:
        # Credentials that were revoked are not renewed before they expire.
        _aws_client.cache_clear()
    client_library("boto3", "boto3", "aws_rds")
    # At DEBUG they log signatures, what is sent to STS and other services, and the credentials that these answer with;
    # and the address of a container's credentials, which no other process may know.
    with quiet("boto3", "botocore", "urllib3"):
        token: str = _aws_client(region, os.getpid()).generate_db_auth_token(login.host, login.port, login.user)
    return token


# Making a client reads a hundred files and takes longer than a commit. A forked process makes its own.
@lru_cache(maxsize=8)
def _aws_client(region: str | None, _pid: int) -> Any:
    boto3 = client_library("boto3", "boto3", "aws_rds")
    session = boto3.session.Session(region_name=region)
    if session.region_name is None:
        raise source_missing(
            "AWS signs tokens for one region, and neither the host in url nor the environment names one.",
            "Let url name the endpoint as RDS shows it (....eu-west-1.rds.amazonaws.com), or set AWS_REGION for every "
            "process that connects.",
        )
    return session.client("rds")


# Source: "Use Microsoft Entra ID for authentication with Azure Database for PostgreSQL". The resource is that of
# databases (``oss-rdbms``) alone, and its name differs between Azure's clouds.
_AZURE = "https://ossrdbms-aad.database.windows.net/.default"
# By the end of the host's name.
_OTHER_AZURE_CLOUDS = {
    ".chinacloudapi.cn": "https://ossrdbms-aad.database.chinacloudapi.cn/.default",
    ".usgovcloudapi.net": "https://ossrdbms-aad.database.usgovcloudapi.net/.default",
}


def azure(login: Login) -> str:
    """
    A token for the identity that ``DefaultAzureCredential`` finds: environment, workload or managed identity, ``az``.

    The role in url is the name of that identity in the database.

    :raises ConfigurationError: PASSWORD_SOURCE_MISSING, without azure-identity.
    """
    if login.refused:
        # A credential keeps its tokens, so a new one is made.
        _azure_credential.cache_clear()
    credential = _azure_credential(os.getpid())
    # At DEBUG, msal logs answers that it did not expect, with all their content.
    with quiet("azure", "msal", "msal_extensions", "urllib3"):
        token: str = credential.get_token(_azure_scope(login.host)).token
    return token


def _azure_scope(host: str) -> str:
    for end, scope in _OTHER_AZURE_CLOUDS.items():
        if host.lower().endswith(end):
            return scope
    return _AZURE


@lru_cache(maxsize=1)
def _azure_credential(_pid: int) -> Any:
    identity = client_library("azure.identity", "azure-identity", "azure")
    return identity.DefaultAzureCredential()


# Source: "Authenticate to a database instance" in the documentation of Databricks: the workspace gives a credential for
# the names of instances, which is valid for an hour and is the password of the identity's own role. It is asked for
# one instance (or endpoint) only, for each connection.
LAKEBASE_INSTANCE = "PGONCE_LAKEBASE_INSTANCE"
"""The environment variable for the name of a provisioned instance."""

LAKEBASE_ENDPOINT = "PGONCE_LAKEBASE_ENDPOINT"
"""The environment variable for the name of an endpoint: projects/.../branches/.../endpoints/..."""

_LAKEBASE_ID = re.compile(r"^instance-(?:ro-)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.", re.IGNORECASE)


def databricks(login: Login) -> str:
    """
    A token for the identity that databricks-sdk logs in to the workspace with (``DATABRICKS_HOST`` and so on).

    Which instance is meant is read from the host in url; where that does not say it, from
    ``PGONCE_LAKEBASE_INSTANCE`` or, for an endpoint of a project, ``PGONCE_LAKEBASE_ENDPOINT``.

    :raises ConfigurationError: PASSWORD_SOURCE_MISSING, without databricks-sdk, or where no instance is known.
    """
    if login.refused:
        _lakebase_workspace.cache_clear()
        _lakebase_name.cache_clear()
    endpoint = os.environ.get(LAKEBASE_ENDPOINT)
    client_library("databricks.sdk", "databricks-sdk", "databricks")
    # At DEBUG it logs answers, and hides in them what it knows to be secret; a database's credential is not among that.
    # It logs in to Google by google-auth.
    with quiet("databricks", "google", "urllib3"):
        workspace = _lakebase_workspace(os.getpid())
        if endpoint:
            made = workspace.postgres.generate_database_credential(endpoint=endpoint)
        else:
            made = workspace.database.generate_database_credential(instance_names=[_lakebase_instance(login.host)])
    token: str = made.token
    return token


def _lakebase_instance(host: str) -> str:
    named, found = os.environ.get(LAKEBASE_INSTANCE), _LAKEBASE_ID.match(host)
    if named:
        return named
    if found is None:
        raise source_missing(
            "Databricks gives tokens for one instance or endpoint of Lakebase, and the host in url does not name one "
            "(instance-....database.cloud.databricks.com).",
            f"Set {LAKEBASE_INSTANCE}=<name of the instance>, or "
            f"{LAKEBASE_ENDPOINT}=projects/.../branches/.../endpoints/..., for every process that connects.",
        )
    return _lakebase_name(found[1].lower(), os.getpid())


@lru_cache(maxsize=8)
def _lakebase_name(uid: str, pid: int) -> str:
    name: str = _lakebase_workspace(pid).database.find_database_instance_by_uid(uid=uid).name
    return name


@lru_cache(maxsize=1)
def _lakebase_workspace(_pid: int) -> Any:
    return client_library("databricks.sdk", "databricks-sdk", "databricks").WorkspaceClient()


# Source: "Log in using IAM database authentication" in the documentation of Cloud SQL for PostgreSQL. The password is
# an OAuth 2.0 access token that may be used to log in to databases and for nothing else.
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/sqlservice.login"

_google_refreshing = Lock()


def google(login: Login) -> str:
    """
    A token for the identity that Google's Application Default Credentials find.

    The role in url is that identity's name in the database: an e-mail address, without ``.gserviceaccount.com``.

    :raises ConfigurationError: PASSWORD_SOURCE_MISSING, without google-auth and requests.
    """
    transport = client_library("google.auth.transport.requests", "google-auth[requests]", "google")
    # Two threads that refresh one credential at once would each see half of the other's answer.
    with _google_refreshing:
        if login.refused:
            _google_credentials.cache_clear()
        credentials = _google_credentials(os.getpid())
        if not credentials.valid:
            # At DEBUG it logs what it sends, and hides in that the secrets of some logins, but not of all.
            with quiet("google", "urllib3"):
                credentials.refresh(transport.Request())
        token: str = credentials.token
    return token


@lru_cache(maxsize=1)
def _google_credentials(_pid: int) -> Any:
    library = client_library("google.auth", "google-auth[requests]", "google")
    credentials, _ = library.default(scopes=[_GOOGLE_SCOPE])
    return credentials


def client_library(module: str, package: str, extra: str) -> Any:
    """
    The module of a cloud's client library.

    :raises ConfigurationError: PASSWORD_SOURCE_MISSING, if the package is not installed.
    """
    try:
        return import_module(module)
    except ImportError:
        pass
    raise source_missing(
        f"The tokens of passwordFrom=pgonce.tokens:{extra} need the package {package}, which is not installed here.",
        f"Run `pip install 'pgonce[{extra}]'` for every process that connects: on the driver, on executors that stage "
        "rows, and where the command line runs.",
    )


_asks: ContextVar[bool] = ContextVar("asks_for_a_token", default=False)


def _may_be_written(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG or not _asks.get()


def _listen_to(libraries: tuple[str, ...]) -> None:
    # A filter of a logger does not see the lines of the loggers below it.
    below = tuple(f"{library}." for library in libraries)
    names = [name for name in list(logging.root.manager.loggerDict) if name.startswith(below)]
    for name in (*libraries, *names):
        logging.getLogger(name).addFilter(_may_be_written)


@contextmanager
def quiet(*libraries: str) -> Iterator[None]:
    """
    Drop what the loggers of these libraries write at DEBUG in this thread while the block runs.

    These are the loggers that the names stand for, and those below them that are there when the block begins: import
    the library before.
    """
    _listen_to(libraries)
    before = _asks.set(True)
    try:
        yield
    finally:
        _asks.reset(before)
