"""The password of Cloud SQL for PostgreSQL: a token for the identity of Application Default Credentials."""

import functools
import threading

import google.auth
from google.auth.transport.requests import Request

one_at_a_time = threading.Lock()  # two threads that renew one token would each see half of the other's answer


@functools.lru_cache  # they keep a token until shortly before it expires
def credentials():
    return google.auth.default(scopes=["https://www.googleapis.com/auth/sqlservice.login"])[0]


def password(login):
    with one_at_a_time:
        if login.refused:
            credentials.cache_clear()
        if not credentials().valid:
            credentials().refresh(Request())
        return credentials().token
