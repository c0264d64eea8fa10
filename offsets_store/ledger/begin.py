"""
Begin the transaction that publishes a batch.

Runs in the commit. Invariant: every function takes a connection whose transaction the caller owns. From the begin to
the user's SQL our settings are in force, and every setting ends with the transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql
from sqlalchemy import Connection, bindparam, func, literal_column, select

from ..postgres.bounds import server_settings
from ..postgres.connect import driver_connection
from ..postgres.search_path import ENTER_COLUMNS


@dataclass(frozen=True)
class TransactionState:
    """Which transaction this is, whether its COMMIT waits for the disk, and which process of the server runs it."""

    xid: str
    synchronous_commit: str
    # Asked of the server, because behind a pooler the process id that libpq knows is made up.
    backend_pid: int


# Every name has its schema, because the user's search_path is in force. Postgres keeps this order: the user's settings
# are remembered before ours take their place.
_STATE = select(
    literal_column("pg_catalog.pg_current_xact_id()::pg_catalog.text").label("xid"),
    func.pg_catalog.current_setting("synchronous_commit").label("synchronous_commit"),
    func.pg_catalog.pg_backend_pid().label("backend_pid"),
    literal_column(ENTER_COLUMNS.as_string(None)),
)
_BEGIN = _STATE.add_columns(
    *(
        func.pg_catalog.set_config(name, value, True)
        for name, value in {
            "statement_timeout": "0",
            "idle_in_transaction_session_timeout": "0",
            "lock_timeout": bindparam("lock_timeout"),
            "application_name": bindparam("application"),
            "tcp_user_timeout": bindparam("tcp_user_timeout"),
            "tcp_keepalives_idle": bindparam("tcp_keepalives_idle"),
            "tcp_keepalives_interval": bindparam("tcp_keepalives_interval"),
            "tcp_keepalives_count": bindparam("tcp_keepalives_count"),
        }.items()
    )
)
_BEGIN_17 = _BEGIN.add_columns(func.pg_catalog.set_config("transaction_timeout", "0", True))


PLACES_IN_ORDER = """
(SELECT pg_catalog.hashtextextended(p.name, 0) AS key
 FROM pg_catalog.unnest(CAST({} AS pg_catalog.text[])) AS p(name) ORDER BY 1) AS k
"""
"""The keys of the locks that let new writers of a sink, or of a table, in one by one; in one order for all."""


def begin_in_tx(connection: Connection, application: str, lock_timeout_seconds: float) -> TransactionState:
    """
    Begin: set our search_path (and the rest), lift the session's time limits, and say which transaction this is.

    The server is to notice that this client is gone as soon as the client would notice the same of the server, because
    its locks are in the way of others. All settings are local to the transaction, because behind a pooler the session
    is somebody else's afterwards.
    """
    is_17 = connection.dialect.server_version_info >= (17,)  # type: ignore[operator]
    settings = {
        "application": application,
        "lock_timeout": f"{int(lock_timeout_seconds * 1000)}",
        **server_settings(driver_connection(connection)),
    }
    return TransactionState(*connection.execute(_BEGIN_17 if is_17 else _BEGIN, settings).one()[:3])


def begin_again_in_tx(
    connection: Connection, places: Sequence[str], application: str, lock_timeout_seconds: float
) -> TransactionState:
    """
    Begin another transaction, which sees all queries that have fed these places and keeps new ones out meanwhile.

    :param places: the names of the sink and of its tables.
    """
    # One text, so that no pooler can give the session to others while the session holds a lock. AND CHAIN keeps the
    # user's isolation level. The second lock takes the new snapshot, under the protection of the first. (If another
    # driver of this writer holds its row and waits for the lock, Postgres reports a deadlock, and the batch is tried
    # again.)
    again = sql.SQL(
        "SELECT pg_catalog.pg_advisory_lock(k.key) FROM {keys}; ROLLBACK AND CHAIN; "
        "SELECT pg_catalog.pg_advisory_xact_lock(k.key) FROM {keys}; "
        "SELECT pg_catalog.pg_advisory_unlock(k.key) FROM {keys}"
    ).format(keys=sql.SQL(PLACES_IN_ORDER).format(sql.Literal(list(places))))
    driver_connection(connection).execute(again)
    return begin_in_tx(connection, application, lock_timeout_seconds)


def transaction_state_in_tx(connection: Connection) -> TransactionState:
    """Set our settings again after the user's SQL, and say which transaction this is now."""
    return TransactionState(*connection.execute(_STATE).one()[:3])
