"""
Tokens of Microsoft Entra for Azure Database for PostgreSQL.

Runs where a connection is made. Invariant: the token is for databases alone; azure-identity holds it in memory until
shortly before it expires, and pgonce does not.

Source: "Use Microsoft Entra ID for authentication with Azure Database for PostgreSQL". The resource is that of
databases (``oss-rdbms``), and its name differs between Azure's clouds.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from ..postgres.postgres_url import Login
from .client_library import client_library, quiet

_PUBLIC = "https://ossrdbms-aad.database.windows.net/.default"
# By the end of the host's name.
_OF_OTHER_CLOUDS = {
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
        _credential.cache_clear()
    credential = _credential(os.getpid())
    # At DEBUG, msal logs answers that it did not expect, with all their content.
    with quiet("azure", "msal", "msal_extensions", "urllib3"):
        token: str = credential.get_token(_scope(login.host)).token
    return token


def _scope(host: str) -> str:
    for end, scope in _OF_OTHER_CLOUDS.items():
        if host.lower().endswith(end):
            return scope
    return _PUBLIC


@lru_cache(maxsize=1)
def _credential(_pid: int) -> Any:
    identity = client_library("azure.identity", "azure-identity", "azure")
    return identity.DefaultAzureCredential()
