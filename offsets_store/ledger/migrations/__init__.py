"""
Create the ledger, bring it up to this code's version, and refuse one that this code cannot use.

Runs in the first commit of a process, in executors that stage, and in ``pgonce init``. Invariant: migrations are
applied in order, inside one transaction that holds a lock, and they only add. A streaming role is granted what the code
does with each table, and nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import resources
from threading import Lock

import psycopg
from psycopg import sql

from ...errors import LedgerError, NoLedgerError, OldLedgerError
from ...postgres.bounds import LOCK_SECONDS, enter_in_tx
from ...postgres.connect import connect
from ...postgres.lock_watch import LockWatch
from ...postgres.search_path import SET_OURS
from ...postgres.translate import is_transient, ledger_error
from .. import SCHEMA, STAGING_SCHEMA, VIEWS
from ..restored import follow_restore_in_tx

# It can be any number that every pgonce uses. These are the bytes of "pgonce".
LOCK_KEY = int.from_bytes(b"pgonce", "big")


@dataclass(frozen=True)
class Migration:
    """
    One step of the ledger's form; ``least_reader_version`` is the oldest code that can still use the ledger after it.

    A step that raises ``least_reader_version`` begins with ``LOCK TABLE pgonce.schema_version``: it waits for the
    commits of older code that have begun, and those that begin later find the new version and are refused.
    """

    version: int
    least_reader_version: int
    files: tuple[str, ...]

    @property
    def ddl(self) -> str:
        """The SQL of this step, as it stands in its files."""
        return "\n".join(map(_sql, self.files))


def _sql(file: str) -> str:
    return resources.files(__name__).joinpath(file).read_text(encoding="utf-8")


# Ledgers of versions 1 to 109 were made before the first release, and neither code is to misread the other's ledger:
# this code refuses theirs, and by the least reader version that code refuses this one.
MIGRATIONS = (Migration(200, 200, ("tables.sql", "views.sql", "exchange.sql")),)
FIRST = MIGRATIONS[0].version
NEWEST = MIGRATIONS[-1].version


# The connection strings with which this process has seen a ledger.
ledgers_seen: set[str] = set()
_migrating = Lock()


def ensure_ledger(url: str, connection: psycopg.Connection | None = None) -> None:
    """
    Create the ledger or bring it up to this code's version; a process does this only once.

    A ledger that was restored from a dump has oids of another database; they are looked up again.

    :param connection: to ``url``, in no transaction; None to open one.
    :raises LedgerError: if the ledger is newer than this code can use or older than the first release, or may not be
        created.
    :raises psycopg.Error: what passes by itself (:func:`is_transient`), such as a lock that another session holds for
        long.
    """
    if url in ledgers_seen:
        return
    with nullcontext(connection) if connection else connect(url, autocommit=True) as session:
        try:
            with session.transaction():
                enter_in_tx(session)
                missing = _missing(session)
            if missing:
                # If many queries of a process begin together, only one of them waits for the lock in Postgres.
                with _one_thread():
                    if url not in ledgers_seen:
                        # What event triggers leave in a session is not to lead the rows of a batch elsewhere.
                        with connect(url, autocommit=True) as its_own:
                            migrate(its_own, LockWatch(url, LOCK_SECONDS, armed=True))
                        ledgers_seen.add(url)
            with session.transaction():
                enter_in_tx(session)
                follow_restore_in_tx(session)
        except psycopg.Error as error:
            if is_transient(error):
                raise
            raise ledger_error(error, "preparing the ledger") from error
    ledgers_seen.add(url)


@contextmanager
def _one_thread() -> Iterator[None]:
    if not _migrating.acquire(timeout=LOCK_SECONDS):
        raise psycopg.errors.LockNotAvailable("another query of this process is creating the ledger")
    try:
        yield
    finally:
        _migrating.release()


def forget_ledger(url: str) -> None:
    """Make the next :func:`ensure_ledger` look again, because the ledger was found to be gone."""
    ledgers_seen.discard(url)


def migrate(connection: psycopg.Connection, watch: LockWatch | None = None, role: str | None = None) -> list[int]:
    """
    Apply what is missing, in one transaction; the versions that were applied.

    :param connection: in no transaction, so that the ledger's rows are of the transaction that they name.
    :param watch: finds out who holds the locks that this waits for.
    :param role: gets what a streaming role needs, in the same transaction.
    :raises psycopg.errors.LockNotAvailable: if a lock is held for long; the error names its holder.
    """
    watch = watch or LockWatch("", LOCK_SECONDS)
    try:
        return _migrate(connection, watch, role)
    except psycopg.errors.LockNotAvailable as error:
        raise psycopg.errors.LockNotAvailable(f"{error}, which is held by: {watch.holders}") from None


def _migrate(connection: psycopg.Connection, watch: LockWatch, role: str | None) -> list[int]:
    with connection.transaction():
        # Administrators run this too, and the ledger's views keep what their names mean here.
        pid = enter_in_tx(connection, watch.lock_timeout)
        # Two drivers that start together would otherwise both find no ledger.
        with watch.looking(pid, may_end=False):
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK_KEY])
        missing = _missing(connection)
        if missing and missing[0] is MIGRATIONS[0]:
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(SCHEMA)))
        # Commits of running queries hold locks on these tables, and all later commits would wait behind this.
        with watch.looking(pid, may_end=False):
            for migration in missing:
                connection.execute(migration.ddl)
                connection.execute(_RECORD, [migration.version, migration.least_reader_version])
        connection.execute(_sql("staging.sql"))
        for grant in grants(role) if role is not None else ():
            connection.execute(grant)
    return [migration.version for migration in missing]


_OWNER = """
SELECT r.rolname FROM pg_catalog.pg_namespace AS n
JOIN pg_catalog.pg_roles AS r ON r.oid OPERATOR(pg_catalog.=) n.nspowner
WHERE n.nspname OPERATOR(pg_catalog.=) 'pgonce' AND NOT r.rolsuper
    AND pg_catalog.current_setting('is_superuser') OPERATOR(pg_catalog.=) 'on'
"""


def refuse_owner(connection: psycopg.Connection) -> None:
    """
    Refuse a superuser's session on a ledger that an ordinary role owns: triggers there would run as the superuser.

    :raises LedgerError: LEDGER_OWNER.
    """
    owner = connection.execute(_OWNER).fetchone()
    if owner is not None:
        raise LedgerError(
            "LEDGER_OWNER",
            f"The ledger (schema {SCHEMA}) belongs to role {owner[0]}, and this session is a superuser's. What that "
            "role has made of its tables and views would run with your rights.",
            "Nothing was read or written.",
            f"Log in as {owner[0]}. If it may not create the schema {STAGING_SCHEMA}, first run CREATE SCHEMA "
            f"{STAGING_SCHEMA} AUTHORIZATION {owner[0]}.",
        )


_RECORD = "INSERT INTO pgonce.schema_version (version, least_reader_version) VALUES (%s, %s)"


# A query, not to_regclass. That may answer from this session's cache, which does not know yet what another driver has
# created while this one waited for the lock. (This has happened: "relation schema_version already exists".)
_HAS_LEDGER = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'pgonce' AND c.relname = 'schema_version'
)
"""


def _missing(connection: psycopg.Connection) -> tuple[Migration, ...]:
    ((has_ledger,),) = connection.execute(_HAS_LEDGER)
    if not has_ledger:
        return MIGRATIONS
    ((applied, least_reader),) = connection.execute(
        "SELECT coalesce(max(version), 0), coalesce(max(least_reader_version), 0) FROM pgonce.schema_version"
    )
    refuse_too_new(least_reader)
    if applied < FIRST:
        raise LedgerError(
            "LEDGER_UNRELEASED",
            f"The ledger (schema {SCHEMA}) has version {applied}: a pgonce from before the first release made it. This "
            f"pgonce uses ledgers from version {FIRST} on.",
            "Nothing was read or written.",
            "Go on with the pgonce that made it. Or stop its jobs; run its `pgonce recover` for checkpoints with "
            "asynchronous progress tracking, and each query in real time once with the trigger availableNow, because "
            "their next batch could begin before the end of last_batch_id; note query_id, sink_name and last_batch_id "
            f"of each row in {SCHEMA}.writers; run ALTER SCHEMA {SCHEMA} RENAME TO pgonce_unreleased; and start each "
            "query once with adoptCheckpoint=<last_batch_id + 1>. Deletes that onlyNewer remembers are forgotten.",
        )
    return tuple(migration for migration in MIGRATIONS if migration.version > applied)


def refuse_too_new(least_reader: int) -> None:
    """
    Refuse a ledger that only code of version ``least_reader`` or later can use, if this code is older.

    :raises LedgerError: PGONCE_TOO_OLD.
    """
    if least_reader > NEWEST:
        raise LedgerError.usual(
            "PGONCE_TOO_OLD",
            f"The ledger (schema pgonce) needs code of version {least_reader} or later; this pgonce knows version "
            f"{NEWEST}.",
            "Upgrade pgonce in this job: another job has already upgraded the ledger.",
        )


def require_ledger(connection: psycopg.Connection) -> None:
    """
    Check that there is a ledger and that this code can read it; create nothing. Our search_path must be in force.

    :raises LedgerError: NO_LEDGER, LEDGER_TOO_OLD, PGONCE_TOO_OLD, LEDGER_UNRELEASED.
    """
    missing = _missing(connection)
    if not missing:
        return
    if missing[0] is MIGRATIONS[0]:
        raise NoLedgerError(
            "NO_LEDGER",
            f"The database {connection.info.dbname!r} has no ledger (schema {SCHEMA}).",
            "Nothing was read or written.",
            "Check that url names the database that the query writes to. The first batch of a query creates the "
            "ledger, and so does `pgonce init`.",
        )
    raise OldLedgerError(
        "LEDGER_TOO_OLD",
        f"The ledger (schema {SCHEMA}) lacks version {missing[-1].version}, which this pgonce reads.",
        "Nothing was read or written.",
        "Run `pgonce init`, which brings the ledger up to date.",
    )


# A test revokes them one by one.
PRIVILEGES = {
    "SELECT, INSERT, UPDATE": (
        "writers",
        "interventions",
        "batch_jobs",
        "home",
        "measured_lag",
        "positions",
    ),
    "SELECT, INSERT, UPDATE, DELETE": ("batches", "progress", "tombstones", "tombstone_sets", "failures", "heartbeats"),
    "SELECT, INSERT, DELETE": ("replays", "staged_tables"),
    "SELECT, INSERT": ("dead_letters", "runs", "target_changes", "batch_job_skips"),
    "SELECT": ("schema_version", *VIEWS),
}


def init_sql(role: str | None = None) -> str:
    """The whole DDL for an administrator to run by hand, with the grants that ``role`` needs."""
    # Commits of running queries hold locks on these tables, and all later commits would wait behind this.
    bound = f"SET LOCAL lock_timeout = '{LOCK_SECONDS:g}s';"
    parts = ["BEGIN;", f"{SET_OURS};", bound, f"CREATE SCHEMA IF NOT EXISTS {SCHEMA};"]
    for migration in MIGRATIONS:
        parts.append(migration.ddl)
        parts.append(
            "INSERT INTO pgonce.schema_version (version, least_reader_version) "
            f"VALUES ({migration.version}, {migration.least_reader_version});"
        )
    parts.append(_sql("staging.sql"))
    if role is not None:
        parts.extend(f"{statement};" for statement in grants(role))
    return "\n".join([*parts, "COMMIT;", ""])


def grants(role: str) -> tuple[str, ...]:
    """What a streaming role needs on the ledger, and where it stages rows."""
    name = sql.Identifier(role).as_string(None)
    return (
        f"GRANT USAGE ON SCHEMA {SCHEMA} TO {name}",
        f"GRANT USAGE, CREATE ON SCHEMA {STAGING_SCHEMA} TO {name}",
        *(
            f"GRANT {privileges} ON {', '.join(f'{SCHEMA}.{relation}' for relation in relations)} TO {name}"
            for privileges, relations in PRIVILEGES.items()
        ),
    )
