"""
Tokens of Google for Cloud SQL: IAM database authentication.

Runs where a connection is made. Invariant: the token may be used to log in to databases and for nothing else;
google-auth holds it in memory until shortly before it expires, and pgonce does not.

Source: "Log in using IAM database authentication" in the documentation of Cloud SQL for PostgreSQL. The password is an
OAuth 2.0 access token with the scope ``sqlservice.login``.
"""

from __future__ import annotations

import os
from functools import lru_cache
from threading import Lock
from typing import Any

from ..postgres.postgres_url import Login
from .client_library import client_library, quiet

_SCOPE = "https://www.googleapis.com/auth/sqlservice.login"

_refreshing = Lock()


def google(login: Login) -> str:
    """
    A token for the identity that Google's Application Default Credentials find.

    The role in url is that identity's name in the database: an e-mail address, without ``.gserviceaccount.com``.

    :raises ConfigurationError: PASSWORD_SOURCE_MISSING, without google-auth and requests.
    """
    transport = client_library("google.auth.transport.requests", "google-auth[requests]", "google")
    # Two threads that refresh one credential at once would each see half of the other's answer.
    with _refreshing:
        if login.refused:
            _credentials.cache_clear()
        credentials = _credentials(os.getpid())
        if not credentials.valid:
            # At DEBUG it logs what it sends, and hides in that the secrets of some logins, but not of all.
            with quiet("google", "urllib3"):
                credentials.refresh(transport.Request())
        token: str = credentials.token
    return token


@lru_cache(maxsize=1)
def _credentials(_pid: int) -> Any:
    library = client_library("google.auth", "google-auth[requests]", "google")
    credentials, _ = library.default(scopes=[_SCOPE])
    return credentials
