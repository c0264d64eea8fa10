"""
Which server is this, and is it one on which pgonce was tested?

Runs in the command ``pgonce check``. Invariant: it only looks.
"""

from __future__ import annotations

import re

import psycopg

from ..postgres.translate import PRIMARY_NEEDED
from .answers import Answer, Holds, Question, one_row

_OLDEST, _NEWEST = 14, 18
# What speaks Postgres's protocol calls itself a Postgres, and names itself in the same text.
_OTHERS = {
    "CockroachDB": re.compile(r"CockroachDB"),
    "YugabyteDB": re.compile(r"-YB-|Yugabyte"),
    "Redshift": re.compile(r"Redshift"),
    "Greenplum": re.compile(r"Greenplum|Cloudberry"),
    "Materialize": re.compile(r"Materialize"),
}
_EXTENSIONS = (
    "SELECT extname || ' ' || extversion FROM pg_extension WHERE extname IN ('citus', 'timescaledb') ORDER BY 1"
)
_STORAGES = {
    "Neon": "SELECT pg_catalog.current_setting('neon.tenant_id', true) IS NOT NULL",
    "Aurora": "SELECT EXISTS (SELECT FROM pg_catalog.pg_proc WHERE proname = 'aurora_version')",
}


def product(version: str) -> str | None:
    """The database that is not Postgres, and whose ``version()`` this is; None for Postgres."""
    return next((name for name, pattern in _OTHERS.items() if pattern.search(version)), None)


def storage_of_its_own(connection: psycopg.Connection) -> str | None:
    """The database whose storage keeps what is committed, whatever becomes of the server; None for Postgres."""
    return next((name for name, question in _STORAGES.items() if one_row(connection, question)[0]), None)


def _version(connection: psycopg.Connection) -> Answer:
    version = str(one_row(connection, "SELECT version()")[0])
    called = " ".join(version.split()[:2]).rstrip(",")
    if other := product(version):
        return Answer(
            Holds.UNKNOWN,
            f"this is {other}: pgonce was never run on it. What follows was tried on it now.",
            "Read `pgonce explain databases`, and try it with rows that you can spare.",
        )
    number = connection.info.server_version
    added = [name for (name,) in connection.execute(_EXTENSIONS.encode()).fetchall()]
    if name := storage_of_its_own(connection):
        added.append(name)
    if number // 10000 < _OLDEST:
        return Answer(Holds.NO, f"this is {called}", f"Use Postgres {_OLDEST} to {_NEWEST}.")
    if number // 10000 > _NEWEST:
        return Answer(Holds.UNKNOWN, f"this is {called}, which is newer than what pgonce was tested on")
    if added:
        return Answer(
            Holds.UNKNOWN,
            f"this is {called}, as {', '.join(added)} has it: pgonce was tested on Postgres alone",
            "Read `pgonce explain databases`.",
        )
    return Answer(Holds.YES, f"this is {called}")


def _primary(connection: psycopg.Connection) -> Answer:
    standby, read_only = one_row(connection, "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')")
    info = connection.info
    where = f"port {info.port} of {info.host}"
    if standby:
        return Answer(Holds.NO, f"{where} is a standby, which takes no writes", PRIMARY_NEEDED)
    if read_only == "on":
        return Answer(Holds.NO, f"{where} is a primary, but default_transaction_read_only is on", PRIMARY_NEEDED)
    return Answer(Holds.YES, f"{where} is a primary, and takes writes")


QUESTIONS = (
    Question("server", f"pgonce is tested on Postgres {_OLDEST} to {_NEWEST}.", _version),
    Question("primary", "Rows are written by this url.", _primary),
)
