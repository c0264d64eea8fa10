"""
Add the columns of a batch that its table lacks.

Runs in the commit; what stands in the way, as far as the catalogue tells, is looked at before Spark's job too.
Invariants: a table is altered only where its batch would be refused otherwise, and no type is changed. What is done
here is done or undone with the batch, because it is in its transaction. The lock that keeps readers out is asked for
only while no weaker lock of this look is held (two sessions that both want to strengthen one would wait for each
other), only for a short time, and only once the batch's rows are at hand.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import TargetError, bad_target
from pgonce.offsets_store.postgres import search_path
from pgonce.offsets_store.postgres.lock_watch import WHO, HeldByOthersError

from ..encoding.encoded_types import EncodedColumn
from ..options.destination import Destination
from .checked_table import is_key
from .table.catalogue import TargetColumn, TargetTable
from .table.lock import lock_table
from .table.new_table import NewColumn, alter_statement
from .table.table_name import ResolvedName

_log = logging.getLogger("pgonce")

_OBSTACLES = """
WITH RECURSIVE tree AS (
    SELECT {oid}::oid AS relid UNION SELECT i.inhrelid FROM pg_inherits AS i JOIN tree AS t ON t.relid = i.inhparent
)
SELECT found.reason, found.altered FROM (
    SELECT 1 AS place, format('it is a partition of %s', r.root) AS reason, r.root AS altered
    FROM pg_class AS c, LATERAL (SELECT pg_partition_root(c.oid)::regclass::text AS root) AS r
    WHERE c.oid = {oid} AND c.relispartition
    UNION ALL
    SELECT 2, format('only the owner of %s (%s) may do that, and the role %s is not a member of it',
                     c.oid::regclass, pg_get_userbyid(c.relowner), current_user), NULL
    FROM tree AS t JOIN pg_class AS c ON c.oid = t.relid WHERE NOT pg_has_role(c.relowner, 'USAGE')
) AS found
ORDER BY found.place, found.reason LIMIT 1
"""


def refuse_what_stands_in_the_way(
    connection: psycopg.Connection, table: TargetTable, columns: Sequence[NewColumn]
) -> None:
    """:raises TargetError: TARGET_NOT_ALTERED, naming what stands in the way, and the statement to run."""
    row = search_path.execute_in_tx(connection, sql.SQL(_OBSTACLES).format(oid=table.oid)).fetchone()
    if row is not None:
        raise not_altered(table, columns, row[0], altered=row[1])


_LOOK = "SAVEPOINT pgonce_look"
_KEEP = "RELEASE SAVEPOINT pgonce_look"
# This gives up the lock that the look has taken.
_BACK = "ROLLBACK TO SAVEPOINT pgonce_look; RELEASE SAVEPOINT pgonce_look"

# While a session waits for this lock, all others that want the table wait behind it. So the lock is asked for again and
# again, each time for a little longer than deadlock_timeout: after that, Postgres ends an autovacuum that is in the
# way.
_BEYOND_DEADLOCK_TIMEOUT_SECONDS = 1.0
_PAUSE_SECONDS = (0.5, 1.5)

# In milliseconds.
_TIMEOUTS = """
SELECT max(s.setting::int) FILTER (WHERE s.name = 'lock_timeout'),
       max(s.setting::int) FILTER (WHERE s.name = 'deadlock_timeout') FROM pg_settings AS s
"""


def look_as_altered(
    connection: psycopg.Connection, table: TargetTable, encoded: Sequence[EncodedColumn], destination: Destination
) -> TargetTable:
    """The table as it will be, as far as fitting the rows goes."""
    columns = columns_to_add(table, encoded, destination)
    if columns:
        refuse_what_stands_in_the_way(connection, table, columns)
    # Without a length: that is the base type.
    added = (TargetColumn(column.name, re.sub(r"\([-\d, ]+\)", "", column.type), column.type) for column in columns)
    return replace(table, columns=(*table.columns, *added))


def add_columns_in_tx(
    connection: psycopg.Connection,
    destination: Destination,
    encoded: Sequence[EncodedColumn],
    found: ResolvedName | None,
    gather: Callable[[], object],
) -> tuple[ResolvedName, str]:
    """
    Lock the table, once it has been altered so that it takes the rows; say what its name means, and what was altered.

    :param gather: brings the rows to Postgres; called before a lock is taken that keeps readers waiting.
    :raises TargetError: TARGET_NOT_ALTERED.
    :raises psycopg.errors.LockNotAvailable: saying who holds the lock.
    """
    while True:
        connection.execute(_LOOK)
        found, table = lock_table(connection, destination.table, found)
        columns = columns_to_add(table, encoded, destination) if table else ()
        if table is None or not columns:
            connection.execute(_KEEP)
            return found, ""
        refuse_what_stands_in_the_way(connection, table, columns)
        connection.execute(_BACK, prepare=False)
        gather()
        connection.execute(_LOOK)
        _lock_out_others(connection, table, columns)
        found, now = lock_table(connection, destination.table)
        columns = columns_to_add(now, encoded, destination) if now else ()
        if now is not None and now.oid == table.oid and columns:
            refuse_what_stands_in_the_way(connection, now, columns)
            _alter(connection, now, columns)
            connection.execute(_KEEP)
            done = f"{now.qualified_name}: {'; '.join(map(str, columns))}."
            _log.warning("%s", done)
            return found, done
        # Another session has done it meanwhile, or the name means another table now.
        connection.execute(_BACK, prepare=False)


def _lock_out_others(connection: psycopg.Connection, table: TargetTable, columns: Sequence[NewColumn]) -> None:
    timeouts = search_path.execute_in_tx(connection, sql.SQL(_TIMEOUTS)).fetchone()
    lock_timeout, deadlock_timeout = timeouts or (0, 1000)
    patience = (lock_timeout or 30_000) / 1000
    moment = min(patience, deadlock_timeout / 1000 + _BEYOND_DEADLOCK_TIMEOUT_SECONDS)
    lock = sql.SQL(
        "SAVEPOINT pgonce_lock; SET LOCAL lock_timeout = {}; LOCK TABLE {} IN ACCESS EXCLUSIVE MODE; "
        "SET LOCAL lock_timeout = {}; RELEASE SAVEPOINT pgonce_lock"
    ).format(int(moment * 1000), table.identifier, lock_timeout)
    began = time.monotonic()
    while True:
        try:
            connection.execute(lock, prepare=False)
        except psycopg.errors.LockNotAvailable:
            connection.execute("ROLLBACK TO SAVEPOINT pgonce_lock; RELEASE SAVEPOINT pgonce_lock", prepare=False)
            found = search_path.execute_in_tx(connection, sql.SQL(_HOLDERS).format(oid=table.oid)).fetchall()
            holders = "; ".join(row[0] for row in found) or "it has become free since"
            waited = time.monotonic() - began
            if waited + moment > patience:
                raise HeldByOthersError(
                    f"{table.qualified_name} could not be altered for new columns within {waited:.0f} s, because "
                    f"others use it: {holders}",
                    holders,
                ) from None
            _log.warning("%s is to be altered for new columns, and is in use: %s", table.qualified_name, holders)
            time.sleep(random.uniform(*_PAUSE_SECONDS))  # noqa: S311 (so that two queries do not meet again)
        except psycopg.errors.InsufficientPrivilege as error:
            # The owner may alter the table even without a privilege on it.
            raise not_altered(table, columns, f"Postgres says: {error.diag.message_primary}") from error
        else:
            return


def _alter(connection: psycopg.Connection, table: TargetTable, columns: Sequence[NewColumn]) -> None:
    try:
        search_path.execute_in_tx(connection, alter_statement(table.identifier, columns))
    except psycopg.errors.ObjectInUse as error:
        # A function has written to the table.
        reason = (
            "this transaction has used the table before, and its deferred constraints or triggers wait for COMMIT, "
            f"or a cursor is open (Postgres says: {error.diag.message_primary}). Write the frame that has the new "
            "column first, or check the constraints at once with SET CONSTRAINTS <their names> IMMEDIATE"
        )
        raise not_altered(table, columns, reason) from error
    except psycopg.Error as error:
        # Syntax and access, what depends on it, what Postgres cannot do: none of these passes by itself.
        if (error.sqlstate or "")[:2] not in ("0A", "2B", "42"):
            raise
        raise not_altered(table, columns, f"Postgres says: {error.diag.message_primary}") from error


_HOLDERS = f"""
WITH RECURSIVE tree AS (
    SELECT {{oid}}::oid AS relid UNION SELECT i.inhrelid FROM pg_inherits AS i JOIN tree AS t ON t.relid = i.inhparent
)
SELECT DISTINCT {WHO}
FROM pg_locks AS l JOIN tree AS t ON t.relid = l.relation JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.granted AND l.pid <> pg_backend_pid()
AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
"""


def columns_to_add(
    table: TargetTable, encoded: Sequence[EncodedColumn], destination: Destination
) -> tuple[NewColumn, ...]:
    """The columns without which the table does not take the rows, if the user wants them to be added."""
    if destination.schema_evolution != "addColumns" or table.kind not in ("r", "p"):
        return ()
    columns = tuple(
        NewColumn(column.name, column.ddl_type)
        for column in encoded
        if not table.columns_named(column.name) and not destination.is_only_if_there(column.name)
    )
    for column in columns:
        if is_key(column.name, table, destination):
            reason = f"a column that it lacks ({column.name}) is one of the keys, and also needs a unique index"
            raise not_altered(table, [column], reason)
    return columns


def not_altered(
    table: TargetTable, columns: Sequence[NewColumn], reason: str, *, altered: str | None = None
) -> TargetError:
    """
    The error for columns that cannot be added, with the statement that adds them.

    :param altered: the table to alter, as SQL names it, if it is another one.
    """
    statement = alter_statement(sql.SQL(altered) if altered else table.identifier, columns).as_string(None)
    return bad_target(
        "TARGET_NOT_ALTERED",
        f"{table.qualified_name} lacks columns of the rows, and schemaEvolution=addColumns cannot add them: {reason}.",
        f"Remove what prevents it, and let the owner of the table run this: {statement}; then start the query "
        "again. Or rename or drop the column in Spark.",
    )
