"""
Translate psycopg's errors into ours, and decide which of them may pass by themselves.

Pure: runs where Postgres is spoken to. Invariant: no connection string and no password gets past it, and only the
table of SQLSTATEs below says what may be tried again.
"""

from __future__ import annotations

import re

import psycopg

from ..errors import ConnectError, LedgerError, PgonceError
from ..log_lines import scrub

# What passes by itself. Source: appendix A of Postgres's manual, "PostgreSQL Error Codes".
TRANSIENT_SQLSTATES = frozenset({
    "40001",  # serialization_failure
    "40P01",  # deadlock_detected
    "55P03",  # lock_not_available
    "57P01",  # admin_shutdown
    "57P02",  # crash_shutdown
    "57P03",  # cannot_connect_now
    "57P05",  # idle_session_timeout
    "53300",  # too_many_connections
})  # fmt: skip
TRANSIENT_CLASSES = ("08",)  # connection exceptions
# The session ended, and what it was doing may have been done. libpq gives none of these if the connection itself broke,
# but a pooler answers in Postgres's place (PgBouncer with 08P01, for every end of its session).
_LOST_SQLSTATES = frozenset({"57P01", "57P02", "57P03", "57P05", "40003"})

_REFUSED_AT_THE_DOOR = re.compile(
    r"password authentication failed|no password supplied|pg_hba\.conf|does not exist|"
    r"authentication method|SSL error|does not support SSL|certificate|not permitted to log in|"
    r"could not translate host name|no such (user|database)|"
    r"invalid (port|integer|sslmode|connection option)|permission denied",
    re.IGNORECASE,
)
# For a connection that cannot be made, libpq gives no SQLSTATE, only the server's words.
_ABOUT_LOGIN = re.compile(r"\bFATAL\b|authentication|no password supplied", re.IGNORECASE)
_NONE_LEFT = re.compile(
    r"too many (clients|connections)|connection slots are reserved|no more connections allowed", re.IGNORECASE
)


def driver_error(error: BaseException) -> psycopg.Error | None:
    """The psycopg error inside ``error`` (SQLAlchemy's DBAPIError has one), or None."""
    # By its attribute, because a task that stages does not import SQLAlchemy.
    inside = getattr(error, "orig", error)
    return inside if isinstance(inside, psycopg.Error) else None


def is_transient(error: psycopg.Error) -> bool:
    """Whether the same may succeed when it is done again."""
    if is_statement_pooling(error):
        return False
    if error.sqlstate is None:
        return is_lost_connection(error)
    return error.sqlstate in TRANSIENT_SQLSTATES or error.sqlstate.startswith(TRANSIENT_CLASSES)


def is_lost_connection(error: psycopg.Error) -> bool:
    """Whether the server's answer, if there was one, was lost: libpq gives no SQLSTATE for that, a pooler does."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate in _LOST_SQLSTATES or error.sqlstate.startswith(TRANSIENT_CLASSES)


def leaves_commit_unknown(error: psycopg.Error) -> bool:
    """
    Whether a COMMIT that was answered with ``error`` may have been done.

    An error of Postgres names the function that raised it. An error without that name comes from a pooler, which may
    have stopped listening (``query_timeout``) while Postgres went on.
    """
    return is_lost_connection(error) or error.diag.source_function is None


def is_statement_pooling(error: psycopg.Error) -> bool:
    """Whether a PgBouncer refuses transactions: it gives its session to another client after every statement."""
    return "statement pooling mode" in str(error)


# Not pgonce_staging, whose tables come and go with their batches.
_OF_THE_LEDGER = re.compile(r"(?<![\w.])pgonce\b")


GRANTS_NEEDED = (
    "Have an administrator run `pgonce init --role <role>` (or the SQL of `pgonce init --sql --role <role>`)."
)
PRIMARY_NEEDED = (
    "If the server is a standby (SELECT pg_is_in_recovery()), point url at the primary; with several hosts in url, add "
    "target_session_attrs=read-write, and libpq looks for it. Otherwise clear default_transaction_read_only for this "
    "role or database."
)


def is_standby(error: psycopg.Error) -> bool:
    """Whether the server has refused a function because it is a standby. (Its message may be in any language.)"""
    return error.sqlstate == "25006" and error.diag.source_function == "PreventCommandDuringRecovery"


def is_ledger_gone(error: psycopg.Error) -> bool:
    """Whether schema pgonce, or a table of the ledger in it, does not exist."""
    is_missing = error.sqlstate in ("42P01", "3F000")
    return is_missing and _OF_THE_LEDGER.search(error.diag.message_primary or "") is not None


def connect_error(error: psycopg.Error, *, was_let_in: bool = False, asked: bool = False) -> ConnectError:
    """
    The error for a connection that could not be made.

    :param was_let_in: whether this process has connected with the same url before: then a login that is refused now
        may be accepted again (a password is being rotated).
    :param asked: whether the password came from passwordFrom.
    """
    text = scrub(" ".join(str(error).split()))
    is_refused = _REFUSED_AT_THE_DOOR.search(text) is not None
    if is_refused:
        remedy = (
            "Check user, password, database and TLS settings of url; libpq's PG* variables, service file and ~/.pgpass "
            "count too."
        )
        if asked:
            remedy = (
                "Check user, database and TLS settings of url, and that the password from passwordFrom is for this "
                "role, host and database. If Postgres refuses a password, passwordFrom is called a second time."
            )
        if was_let_in:
            remedy += (
                " They worked earlier in this process, so they have changed since then, or the server's settings have."
            )
    elif _NONE_LEFT.search(text):
        remedy = (
            "Raise max_connections of Postgres (max_client_conn of a PgBouncer), end sessions that are not needed, or "
            "let this process open fewer connections (environment variable PGONCE_MAX_CONNECTIONS)."
        )
    else:
        remedy = "Check that the server runs and that host and port of url can be reached from this process."
    code = "CONNECT_REFUSED" if is_refused else "CONNECT_FAILED"
    what = "Postgres refused the login" if is_refused and _ABOUT_LOGIN.search(text) else "Postgres could not be reached"
    return ConnectError(code, f"{what}: {text}.", "Nothing was written.", remedy, may_pass=was_let_in or not is_refused)


def without_values(error: psycopg.Error) -> str:
    """
    What kind of error of Postgres it is, and of which table, column or constraint.

    Postgres's own words are left out: they may repeat a value, a whole row, or a statement with values in it.
    """
    diag = error.diag
    table = ".".join(name for name in (diag.schema_name, diag.table_name) if name)
    names = {"table": table, "column": diag.column_name, "constraint": diag.constraint_name, "type": diag.datatype_name}
    kind = f"SQLSTATE {error.sqlstate} ({type(error).__name__})" if error.sqlstate else type(error).__name__
    return ", ".join([kind, *(f"{what} {name}" for what, name in names.items() if name)])


def ledger_error(error: psycopg.Error, doing: str) -> PgonceError:
    """The error for a statement on the ledger that failed while ``doing`` something."""
    found = _ledger_error(error, doing)
    found.kept = f"While {doing}, Postgres or the connection to it failed with {without_values(error)}."
    return found


def _ledger_error(error: psycopg.Error, doing: str) -> PgonceError:
    if is_statement_pooling(error):
        return ConnectError.usual(
            "STATEMENT_POOLING",
            f"A pooler between this process and Postgres forbids transactions: {scrub(' '.join(str(error).split()))}.",
            "Rows and offsets are written in one transaction: set pool_mode of this database or user to transaction "
            "(or session) in PgBouncer, or let url name Postgres itself.",
        )
    if is_ledger_gone(error):
        return ledger_gone(f"This process has used the ledger (schema pgonce) before, and now Postgres says: {error}")
    if is_lost_connection(error) or isinstance(error, psycopg.InterfaceError):
        return connect_error(error)
    text = scrub(" ".join(str(error).split()))
    if error.sqlstate == "42501":
        return LedgerError.usual(
            "LEDGER_NOT_PERMITTED",
            f"While {doing}, the role lacked a permission: {text}.",
            f"{GRANTS_NEEDED} Who only reads, or decides by hand, needs others: page `security` of the documentation.",
        )
    if error.sqlstate == "55P03":
        return LedgerError.usual(
            "LOCKED",
            f"While {doing}, a lock on the ledger did not become free: {text}.",
            "End the session that holds it, or wait for it, and try again; `SELECT * FROM pg_stat_activity` shows it.",
        )
    if error.sqlstate in ("25006", "0A000"):
        return LedgerError.usual(
            "READ_ONLY",
            f"While {doing}, the server refused to write: {text}.",
            PRIMARY_NEEDED,
        )
    return LedgerError.usual(
        "LEDGER_FAILED",
        f"While {doing}, a statement was refused (SQLSTATE {error.sqlstate or 'none: by the client'}): {text}.",
        "Look the SQLSTATE up in Postgres's manual, remove its cause and try again.",
    )


def ledger_gone(what: str) -> LedgerError:
    """The error for a ledger that was there before and is gone; ``what`` says how that was noticed."""
    return LedgerError(
        "LEDGER_GONE",
        f"{' '.join(what.split()).rstrip('.')}. The ledger was dropped, or the database was restored without it, or it "
        "fell back to an earlier time.",
        "Nothing was written by this try.",
        "Restore the schema pgonce as it was at the same moment as the target tables, in place of an empty one that a "
        "start may have made since. If it is lost for good, and the tables have lost nothing, start each query with "
        "adoptCheckpoint=<the first batch whose rows are not in its table>. Look for that batch: the one that has "
        "just failed may have been written by an earlier try, and then it is the batch after it (page "
        "`replace-your-foreachbatch` of the documentation tells how to find out). If the database fell back to a time "
        "before the first batch of this query, its rows are gone too: start it on a new, empty checkpoint that begins "
        "with the first of them.",
    )


def passes(error: BaseException | None) -> bool:
    """Whether an error of Postgres, or ours for it or for a failed connection, may be gone at the next try."""
    if isinstance(error, ConnectError):
        return error.may_pass
    if isinstance(error, LedgerError):
        error = error.__cause__
    cause = None if error is None else driver_error(error)
    return cause is not None and is_transient(cause)
