"""
Ask a server whether the promises of pgonce would hold there: which server it is, and whether it keeps what it commits.

Runs in the command ``pgonce check``, before the first query is started. Invariant: each question is tried on the server
itself. Nothing is left behind there, or in a session that goes to another client of a pooler.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg

from pgonce.offsets_store.postgres.bounds import enter_in_tx
from pgonce.offsets_store.postgres.connect import connect
from pgonce.offsets_store.postgres.translate import PRIMARY_NEEDED

from . import role
from .answers import BEGIN, Answer, Finding, Holds, Question, asked, one_row


def check_server(url: str, *more: Question) -> list[Finding]:
    """
    Ask all questions, and ``more``; what could not be asked for an earlier answer is left out.

    :raises ConnectError: if the server cannot be reached, or ends the session.
    """
    with connect(url, autocommit=True) as connection:
        try:
            return list(_findings(connection, more))
        except psycopg.Error as error:
            return [_statement_pooling(error)]


def _findings(connection: psycopg.Connection, more: tuple[Question, ...]) -> Iterator[Finding]:
    found = [asked(connection, question) for question in (*_OF_THE_SERVER, *role.QUESTIONS)]
    yield from found
    if not any(finding.name == "primary" and finding.holds is Holds.NO for finding in found):
        # A server that refuses to write cannot be asked what they would do.
        yield from (asked(connection, question) for question in (_DEFERRED_KEY, *more))


_OLDEST, _NEWEST = 14, 19
# Databases that speak Postgres's protocol call themselves Postgres, and give their own name in the same text.
_OTHERS = {
    "CockroachDB": re.compile(r"CockroachDB"),
    "YugabyteDB": re.compile(r"-YB-|Yugabyte"),
    "Redshift": re.compile(r"Redshift"),
    "Greenplum": re.compile(r"Greenplum|Cloudberry"),
    "Materialize": re.compile(r"Materialize"),
}
_CITUS = "SELECT extname || ' ' || extversion FROM pg_extension WHERE extname = 'citus'"
_STORAGES = {
    "Neon": "SELECT pg_catalog.current_setting('neon.tenant_id', true) IS NOT NULL",
    "Aurora": "SELECT EXISTS (SELECT FROM pg_catalog.pg_proc WHERE proname = 'aurora_version')",
}


def product(version: str) -> str | None:
    """The database that is not Postgres, and whose ``version()`` this is; None for Postgres."""
    return next((name for name, pattern in _OTHERS.items() if pattern.search(version)), None)


def _storage_of_its_own(connection: psycopg.Connection) -> str | None:
    """The database whose storage keeps what is committed even if the server is lost; None for Postgres."""
    return next((name for name, question in _STORAGES.items() if one_row(connection, question)[0]), None)


def _version(connection: psycopg.Connection) -> Answer:
    version = str(one_row(connection, "SELECT version()")[0])
    called = " ".join(version.split()[:2]).rstrip(",")
    if other := product(version):
        return Answer(
            Holds.NO,
            f"this is {other}, and pgonce needs Postgres",
            f"Use Postgres {_OLDEST} to {_NEWEST}. Page `databases` of the documentation says what others lack.",
        )
    number = connection.info.server_version
    added = [name for (name,) in connection.execute(_CITUS).fetchall()]
    if name := _storage_of_its_own(connection):
        added.append(name)
    if number // 10000 < _OLDEST:
        return Answer(Holds.NO, f"this is {called}", f"Use Postgres {_OLDEST} to {_NEWEST}.")
    if number // 10000 > _NEWEST:
        return Answer(Holds.UNKNOWN, f"this is {called}, which is newer than the versions on which pgonce was tested")
    if added:
        return Answer(
            Holds.UNKNOWN,
            f"this is {called}, with {', '.join(added)}: pgonce was tested only on plain Postgres",
            "Read page `databases` of the documentation.",
        )
    return Answer(Holds.YES, f"this is {called}")


def _primary(connection: psycopg.Connection) -> Answer:
    standby, read_only = one_row(connection, "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')")
    info = connection.info
    where = f"port {info.port} of {info.host}"
    if standby:
        return Answer(Holds.NO, f"{where} is a standby, which refuses to write", PRIMARY_NEEDED)
    if read_only == "on":
        return Answer(Holds.NO, f"{where} is a primary, but default_transaction_read_only is on", PRIMARY_NEEDED)
    return Answer(Holds.YES, f"{where} is a primary, and can write")


def _pooler(connection: psycopg.Connection) -> Answer:
    if one_row(connection, "SELECT pg_backend_pid()")[0] == connection.info.backend_pid:
        return Answer(Holds.YES, "there is no pooler, or it keeps a session for each client")
    return Answer(
        Holds.YES,
        "there is a pooler, and it keeps each transaction in one session (pool_mode is transaction or session)",
        "Give it at least one session more than the number of queries that commit at the same time.",
    )


def _settings(connection: psycopg.Connection) -> Answer:
    enter_in_tx(connection, 1.237)  # a value that no role has
    if one_row(connection, "SELECT current_setting('lock_timeout')")[0] != "1237ms":
        return Answer(Holds.NO, "SET LOCAL has no effect")
    connection.execute("ROLLBACK")
    # In autocommit mode, this is a transaction of its own.
    if one_row(connection, "SELECT pg_catalog.current_setting('lock_timeout')")[0] == "1237ms":
        return Answer(
            Holds.NO,
            "SET LOCAL outlives its transaction, so behind a pooler it would change the settings of other clients",
        )
    connection.execute(BEGIN)
    return Answer(Holds.YES, "the settings of a transaction end with it")


_PROMISE = "Rows and offsets are written in one transaction."


def _statement_pooling(said: psycopg.Error) -> Finding:
    """The only answer that there is behind a pooler in statement mode."""
    return Finding(
        "pooler",
        _PROMISE,
        Holds.NO,
        f"there is a pooler, and it forbids transactions: {' '.join(str(said).split())}",
        "Set pool_mode of this database or user to transaction (or session) in PgBouncer, or let url name Postgres "
        "itself.",
    )


def _setting(connection: psycopg.Connection, name: str) -> str:
    return str(one_row(connection, "SELECT pg_catalog.current_setting(%s)", name)[0])


def _synchronous_commit(connection: psycopg.Connection) -> Answer:
    value = _setting(connection, "synchronous_commit")
    if value == "off":
        return Answer(
            Holds.NO,
            "synchronous_commit is off for this role: Postgres would answer COMMIT before the rows are on disk, so "
            "every batch is refused",
            "Set it to on (or local) for this role or database, or in url: options=-csynchronous_commit=on.",
        )
    return Answer(Holds.YES, f"synchronous_commit is {value}")


def _disk(connection: psycopg.Connection) -> Answer:
    off = [name for name in ("fsync", "full_page_writes") if _setting(connection, name) == "off"]
    if not off:
        return Answer(Holds.YES, "fsync and full_page_writes are on")
    are_off = f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} off"
    if name := _storage_of_its_own(connection):
        return Answer(Holds.YES, f"{are_off}, but this is {name}, whose storage keeps committed rows")
    return Answer(
        Holds.NO,
        f"{are_off}: if its host loses power, the server may lose committed batches or all its data",
        f"Set {' and '.join(off)} to on in postgresql.conf, unless this server is for tests.",
    )


def _standbys(connection: psycopg.Connection) -> Answer:
    names, commit = (_setting(connection, name) for name in ("synchronous_standby_names", "synchronous_commit"))
    if not names and (name := _storage_of_its_own(connection)):
        return Answer(Holds.YES, f"this is {name}: after a failover, the new server uses the same storage")
    if not names:
        return Answer(
            Holds.WEAKER,
            "there is no synchronous standby: if the server is replaced by a standby, the last batches may be missing. "
            "The next batch is refused then (GAP), and `pgonce recover` repairs the checkpoint",
        )
    if commit in ("off", "local"):
        return Answer(Holds.WEAKER, f"synchronous_commit is {commit}: COMMIT does not wait for the standbys {names!r}")
    return Answer(
        Holds.YES,
        f"COMMIT waits for the standbys {names!r}, without a limit while too few of them are connected",
        "SELECT * FROM pg_stat_replication shows which of them are connected now.",
    )


_PARENT_AND_CHILD = """
CREATE TEMPORARY TABLE pgonce_parent (id pg_catalog.int8 PRIMARY KEY) ON COMMIT DROP;
CREATE TEMPORARY TABLE pgonce_child (
    id pg_catalog.int8 REFERENCES pg_temp.pgonce_parent (id) DEFERRABLE INITIALLY DEFERRED
) ON COMMIT DROP;
INSERT INTO pg_temp.pgonce_child VALUES (1)
"""


def _deferred(connection: psycopg.Connection) -> Answer:
    # If the key were checked at once, this would be refused.
    connection.execute(_PARENT_AND_CHILD)
    try:
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except psycopg.errors.ForeignKeyViolation:
        return Answer(Holds.YES, "a deferred foreign key is checked at the end of its transaction")
    return Answer(Holds.NO, "a deferred foreign key is not checked at all")


_OF_THE_SERVER = (
    Question("server", f"pgonce is tested on Postgres {_OLDEST} to {_NEWEST}.", _version),
    Question("primary", "Rows are written by this url.", _primary),
    Question("pooler", _PROMISE, _pooler),
    Question(
        "settings",
        "The settings of a commit (timeouts, search_path) do not affect other transactions, even behind a pooler.",
        _settings,
    ),
    Question("synchronous-commit", "A batch that Spark calls done is on disk.", _synchronous_commit),
    Question("disk", "Rows on disk survive a crash of the server's host.", _disk),
    Question("standbys", "Committed rows survive a failover.", _standbys),
)
_DEFERRED_KEY = Question(
    "deferred-key",
    "The SQL in your function cannot commit rows without their offsets (transactional_batch).",
    _deferred,
)
