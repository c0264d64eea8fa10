"""
Tokens of Databricks for its Postgres, Lakebase: OAuth.

Runs where a connection is made. Invariant: a token is asked of the workspace for each connection, and is for one
instance (or endpoint) only.

Source: "Authenticate to a database instance" in the documentation of Databricks: the workspace gives a credential for
the names of instances, which is valid for an hour and is the password of the identity's own role.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Any

from ..postgres.passwords import source_missing
from ..postgres.postgres_url import Login
from .client_library import client_library, quiet

INSTANCE = "PGONCE_LAKEBASE_INSTANCE"
"""The environment variable for the name of a provisioned instance."""

ENDPOINT = "PGONCE_LAKEBASE_ENDPOINT"
"""The environment variable for the name of an endpoint: projects/.../branches/.../endpoints/..."""

_ID_IN_HOST = re.compile(r"^instance-(?:ro-)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.", re.IGNORECASE)


def databricks(login: Login) -> str:
    """
    A token for the identity that databricks-sdk logs in to the workspace with (``DATABRICKS_HOST`` and so on).

    Which instance is meant is read from the host in url; where that does not say it, from
    ``PGONCE_LAKEBASE_INSTANCE`` or, for an endpoint of a project, ``PGONCE_LAKEBASE_ENDPOINT``.

    :raises ConfigurationError: PASSWORD_SOURCE_MISSING, without databricks-sdk, or where no instance is known.
    """
    if login.refused:
        _workspace.cache_clear()
        _name_of.cache_clear()
    endpoint = os.environ.get(ENDPOINT)
    client_library("databricks.sdk", "databricks-sdk", "databricks")
    # At DEBUG it logs answers, and hides in them what it knows to be secret; a database's credential is not among that.
    # It logs in to Google by google-auth.
    with quiet("databricks", "google", "urllib3"):
        workspace = _workspace(os.getpid())
        if endpoint:
            made = workspace.postgres.generate_database_credential(endpoint=endpoint)
        else:
            made = workspace.database.generate_database_credential(instance_names=[_instance(login.host)])
    token: str = made.token
    return token


def _instance(host: str) -> str:
    named, found = os.environ.get(INSTANCE), _ID_IN_HOST.match(host)
    if named:
        return named
    if found is None:
        raise source_missing(
            "Databricks gives tokens for one instance or endpoint of Lakebase, and the host in url does not name one "
            "(instance-....database.cloud.databricks.com).",
            f"Set {INSTANCE}=<name of the instance>, or {ENDPOINT}=projects/.../branches/.../endpoints/..., for every "
            "process that connects.",
        )
    return _name_of(found[1].lower(), os.getpid())


@lru_cache(maxsize=8)
def _name_of(uid: str, pid: int) -> str:
    name: str = _workspace(pid).database.find_database_instance_by_uid(uid=uid).name
    return name


@lru_cache(maxsize=1)
def _workspace(_pid: int) -> Any:
    return client_library("databricks.sdk", "databricks-sdk", "databricks").WorkspaceClient()
