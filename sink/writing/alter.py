"""
Alter a table for a batch: add columns, or widen those that are too narrow for its values.

Runs in the commit; what stands in the way, as far as the catalogue tells, is looked at before Spark's job too.
Invariants: what is done here is done or undone with the batch, because it is in its transaction. The lock that keeps
readers out is asked for only while no weaker lock of this look is held (two sessions that both want to strengthen one
would wait for each other), only for a short time, and only once the batch's rows are at hand. A column is widened only
after Postgres has refused a value as too long or too large for it, so that a batch that fits alters nothing.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeVar

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NotAlteredError, TargetError
from pgonce.offsets_store.postgres import search_path
from pgonce.offsets_store.postgres.lock_watch import WHO, HeldByOthersError

from ..encoding.encoded_types import EncodedColumn
from ..options.destination import Destination
from .bad_row import RowsRefusedError, may_be_a_rows
from .new_columns import Change, alter_statement, changes_for, has_larger, is_limited, not_altered
from .rows import Gathering, whole_or_failed
from .table.catalogue import TargetTable, look_up_table
from .table.lock import lock_table
from .table.table_name import ResolvedName
from .unread_value import is_unread

_log = logging.getLogger("pgonce")

# Indexes on plain columns are kept, and so are the constraints that stand on them; a default is converted. (A foreign
# key is made again, which locks the other table.)
_OBSTACLES = """
WITH RECURSIVE tree AS (
    SELECT {oid}::oid AS relid UNION SELECT i.inhrelid FROM pg_inherits AS i JOIN tree AS t ON t.relid = i.inhparent
),
wider AS (
    SELECT a.attrelid, a.attnum, a.attname, a.attinhcount, a.atttypid, a.atttypmod
    FROM tree AS t JOIN pg_attribute AS a ON a.attrelid = t.relid WHERE a.attname = ANY ({names}::name[])
)
SELECT found.reason, found.altered FROM (
    SELECT 1 AS place, format('it is a partition of %s', r.root) AS reason, r.root AS altered
    FROM pg_class AS c, LATERAL (SELECT pg_partition_root(c.oid)::regclass::text AS root) AS r
    WHERE c.oid = {oid} AND c.relispartition
    UNION ALL
    SELECT 2, format('its columns are those of the type %s', c.reloftype::regtype), NULL
    FROM pg_class AS c WHERE c.oid = {oid} AND c.reloftype <> 0
    UNION ALL
    SELECT 3, format('only the owner of %s (%s) may do that, and the role %s is not a member of it',
                     c.oid::regclass, pg_get_userbyid(c.relowner), current_user), NULL
    FROM tree AS t JOIN pg_class AS c ON c.oid = t.relid WHERE NOT pg_has_role(c.relowner, 'USAGE')
    UNION ALL
    SELECT 4, format('column %I is of the domain %s', w.attname, format_type(w.atttypid, w.atttypmod)), NULL
    FROM wider AS w JOIN pg_type AS y ON y.oid = w.atttypid WHERE w.attrelid = {oid} AND y.typtype = 'd'
    UNION ALL
    SELECT 5, format('column %I is inherited from another table', w.attname), NULL
    FROM wider AS w WHERE w.attrelid = {oid} AND w.attinhcount > 0
    UNION ALL
    SELECT 6, format('column %I is in the partition key of %s', w.attname, p.partrelid::regclass), NULL
    FROM wider AS w JOIN pg_partitioned_table AS p ON p.partrelid = w.attrelid
    WHERE w.attnum = ANY (p.partattrs::int2[])
    UNION ALL
    SELECT 7, format('%s depends on column %I', coalesce(
               (SELECT format('view %s', v.ev_class::regclass) FROM pg_rewrite AS v
                WHERE d.classid = 'pg_rewrite'::regclass AND v.oid = d.objid AND v.rulename = '_RETURN'),
               pg_describe_object(d.classid, d.objid, d.objsubid)), w.attname), NULL
    FROM wider AS w
    JOIN pg_depend AS d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = w.attrelid AND d.refobjsubid = w.attnum
    WHERE NOT EXISTS (SELECT FROM pg_index AS i WHERE d.classid = 'pg_class'::regclass AND i.indexrelid = d.objid
                      AND i.indexprs IS NULL AND i.indpred IS NULL AND NOT i.indisexclusion)
    AND NOT EXISTS (SELECT FROM pg_constraint AS k WHERE d.classid = 'pg_constraint'::regclass AND k.oid = d.objid
                    AND k.contype IN ('p', 'u', 'n'))
    AND NOT EXISTS (SELECT FROM pg_attrdef AS f WHERE d.classid = 'pg_attrdef'::regclass AND f.oid = d.objid
                    AND f.adrelid = w.attrelid AND f.adnum = w.attnum)
    AND NOT EXISTS (SELECT FROM pg_class AS s WHERE d.classid = 'pg_class'::regclass AND s.oid = d.objid
                    AND s.relkind = 'S')
    AND d.classid <> 'pg_statistic_ext'::regclass
) AS found
ORDER BY found.place, found.reason LIMIT 1
"""


def refuse_what_stands_in_the_way(
    connection: psycopg.Connection, table: TargetTable, changes: Sequence[Change]
) -> None:
    """:raises TargetError: TARGET_NOT_ALTERED, naming what stands in the way, and the statement to run."""
    names = [change.column for change in changes if change.before is not None]
    obstacles = sql.SQL(_OBSTACLES).format(oid=table.oid, names=sql.Literal(names))
    row = search_path.execute_in_tx(connection, obstacles).fetchone()
    if row is not None:
        raise not_altered(table, changes, row[0], altered=row[1])


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


def lock_with_new_columns(
    connection: psycopg.Connection,
    destination: Destination,
    encoded: Sequence[EncodedColumn],
    found: ResolvedName | None,
    gather: Callable[[], object],
    too_narrow: Collection[str] = (),
) -> tuple[ResolvedName, TargetTable | None]:
    """
    Like :func:`lock_table`, once the table has been altered so that it takes the rows.

    :param gather: brings the rows to Postgres; called before a lock is taken that keeps readers waiting.
    :raises TargetError: TARGET_NOT_ALTERED.
    :raises psycopg.errors.LockNotAvailable: saying who holds the lock.
    """
    while True:
        connection.execute(_LOOK)
        found, table = lock_table(connection, destination.table, found)
        changes = changes_for(table, encoded, destination, too_narrow) if table else ()
        if table is None or not changes:
            connection.execute(_KEEP)
            return found, table
        refuse_what_stands_in_the_way(connection, table, changes)
        connection.execute(_BACK, prepare=False)
        gather()
        connection.execute(_LOOK)
        _lock_out_others(connection, table, changes)
        found, now = lock_table(connection, destination.table)
        changes = changes_for(now, encoded, destination, too_narrow) if now else ()
        if now is not None and now.oid == table.oid and changes:
            refuse_what_stands_in_the_way(connection, now, changes)
            _alter(connection, now, changes)
            found, altered = lock_table(connection, destination.table)
            connection.execute(_KEEP)
            done = f"{now.qualified_name}: {'; '.join(map(str, changes))}."
            _log.warning("%s", done)
            return found, replace(altered, note=done) if altered else None
        # Another session has done it meanwhile, or the name means another table now.
        connection.execute(_BACK, prepare=False)


def _lock_out_others(connection: psycopg.Connection, table: TargetTable, changes: Sequence[Change]) -> None:
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
            holders = _holders(connection, table)
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
            raise not_altered(table, changes, f"Postgres says: {error.diag.message_primary}") from error
        else:
            return


def _alter(connection: psycopg.Connection, table: TargetTable, changes: Sequence[Change]) -> None:
    try:
        search_path.execute_in_tx(connection, alter_statement(table.identifier, changes))
    except psycopg.errors.ObjectInUse as error:
        # A function has written to the table.
        reason = (
            "this transaction has used the table before, and its deferred constraints or triggers wait for COMMIT, "
            f"or a cursor is open (Postgres says: {error.diag.message_primary}). Write the frame that has the new "
            "column first, or check the constraints at once with SET CONSTRAINTS <their names> IMMEDIATE"
        )
        raise not_altered(table, changes, reason) from error
    except psycopg.Error as error:
        # Syntax and access, what depends on it, what Postgres cannot do: none of these passes by itself.
        if (error.sqlstate or "")[:2] not in ("0A", "2B", "42"):
            raise
        raise not_altered(table, changes, f"Postgres says: {error.diag.message_primary}") from error


_HOLDERS = f"""
WITH RECURSIVE tree AS (
    SELECT {{oid}}::oid AS relid UNION SELECT i.inhrelid FROM pg_inherits AS i JOIN tree AS t ON t.relid = i.inhparent
)
SELECT DISTINCT {WHO}
FROM pg_locks AS l JOIN tree AS t ON t.relid = l.relation JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.granted AND l.pid <> pg_backend_pid()
AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
"""


def _holders(connection: psycopg.Connection, table: TargetTable) -> str:
    holders = search_path.execute_in_tx(connection, sql.SQL(_HOLDERS).format(oid=table.oid))
    return "; ".join(row[0] for row in holders.fetchall()) or "it has become free since"


_BEFORE = "SAVEPOINT pgonce_narrow"
_WRITTEN = "RELEASE SAVEPOINT pgonce_narrow"
_BACK_TO_BEFORE = "ROLLBACK TO SAVEPOINT pgonce_narrow"

_TOO_NARROW = (psycopg.errors.StringDataRightTruncation, psycopg.errors.NumericValueOutOfRange)


T_co = TypeVar("T_co", covariant=True)


class Write(Protocol[T_co]):
    """Writes all rows to a table whose columns ``too_narrow`` are widened."""

    def __call__(self, too_narrow: Collection[str] = ..., *, may_divert: bool = ...) -> T_co:
        """Write them; ``may_divert`` says whether what does not fit may be put aside."""


def written_to_wider(
    connection: psycopg.Connection,
    destination: Destination,
    encoded: Sequence[EncodedColumn],
    gathering: Gathering,
    write: Write[T_co],
) -> T_co:
    """
    What ``write`` returns; if Postgres refuses a value as too large, it is called again for wider columns.

    Rows are put aside as dead letters only at the second time, because a wider column may take them; so are those for
    which a column cannot be widened.

    :param write: takes the columns of the rows that are too narrow in the table.
    """
    connection.execute(_BEFORE)
    try:
        done = write((), may_divert=False)
    except (psycopg.Error, TargetError, RowsRefusedError) as error:
        diverts = destination.dead_letters is not None and may_be_a_rows(error)
        if not diverts and not isinstance(error, _TOO_NARROW):
            raise
        connection.execute(_BACK_TO_BEFORE)
        gathering.undone()
        with whole_or_failed(connection):
            names = _too_narrow(connection, destination, encoded, gathering(), gathering.wanted)
            if diverts:
                names = _that_may_be_widened(connection, destination, encoded, names)
            elif not names:
                raise
            try:
                done = write(names)
            except NotAlteredError:
                if not (diverts and names):
                    raise
                # Only Postgres knew that. The values that are too large are put aside, as without addColumns.
                connection.execute(_BACK_TO_BEFORE)
                gathering.undone()
                done = write(())
    connection.execute(_WRITTEN)
    return done


def _that_may_be_widened(
    connection: psycopg.Connection, destination: Destination, encoded: Sequence[EncodedColumn], names: Collection[str]
) -> frozenset[str]:
    """The columns that may be altered, as far as the catalogue tells."""
    _, table = look_up_table(connection, destination.table)
    found = set()
    for column in encoded:
        with suppress(TargetError):
            if table is not None and column.name in names:
                changes = changes_for(table, [column], destination, (column.name,))
                refuse_what_stands_in_the_way(connection, table, changes)
                found.add(column.name)
    return frozenset(found)


def _too_narrow(
    connection: psycopg.Connection,
    destination: Destination,
    encoded: Sequence[EncodedColumn],
    source: sql.Identifier,
    wanted: sql.Composable,
) -> frozenset[str]:
    _, table = look_up_table(connection, destination.table)
    placeholder, limited, tests = destination.existing.keep_where, [], []
    for column in encoded:
        found = table.columns_named(column.name) if table else []
        if len(found) != 1 or not is_limited(found[0]):
            continue
        unread = None if placeholder is None else is_unread(column, placeholder)
        value: sql.Composable = sql.Identifier(column.name)
        if unread is not None:
            # The placeholder is not written.
            value = sql.SQL("(CASE WHEN NOT {} THEN {} END)").format(unread, value)
        limited.append(column.name)
        tests.append(has_larger(value, found[0]))
    if not limited:
        return frozenset()
    question = sql.SQL("SELECT {} FROM {} WHERE {}").format(sql.SQL(", ").join(tests), source, wanted)
    try:
        with connection.transaction():
            answers = search_path.execute_in_tx(connection, question).fetchone() or ()
    except psycopg.DataError:
        # A value cannot even be read as the column's type: the batch's own error says more about that.
        return frozenset()
    return frozenset(name for name, is_larger in zip(limited, answers, strict=True) if is_larger)
