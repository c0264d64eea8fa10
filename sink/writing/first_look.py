"""
Refuse a batch early, if Postgres can already tell that its table cannot take the rows, or that the ledger refuses it.

Runs in the planner's worker, in the foreachBatch function and where a batch job is planned, before Spark's job.
Invariant: it proves nothing for the commit, which looks again and decides under its locks. It takes no lock that blocks
another session, writes nothing and leaves no session; what cannot be told now is left to the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import sql

from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.work import NamedSink
from pgonce.offsets_store.errors import NOTHING, ConnectError, LedgerError, NoLedgerError, bad_target
from pgonce.offsets_store.ledger import SCHEMA
from pgonce.offsets_store.ledger.feeders import concern_in_tx
from pgonce.offsets_store.ledger.migrations import require_ledger
from pgonce.offsets_store.ledger.privileges import (
    OF_ANY_BATCH,
    OF_ANY_JOB,
    Needed,
    listed,
    may_create_schema,
    missing_on_ledger,
)
from pgonce.offsets_store.postgres.bounds import enter_in_tx
from pgonce.offsets_store.postgres.connect import connect, driver_connection, lone
from pgonce.offsets_store.postgres.refused_rows import target_error
from pgonce.offsets_store.postgres.translate import GRANTS_NEEDED
from pgonce.offsets_store.verdict.decide import PUBLISH, SKIP, decide, stored_positions
from pgonce.offsets_store.verdict.facts import Batch, Ledger, PlannedBatch
from pgonce.offsets_store.verdict.refused_batch import refusal

from ..encoding.encoded_types import EncodedColumn
from ..options.definitions import BY_KEY
from ..options.destination import Destination
from ..options.routes import Route, Routes
from .checked_table import ColumnPlan, check_table, plan_columns, without_extra
from .empty_table import refuse_reaching_others
from .rooms import Rooms
from .table.catalogue import TargetTable, look_up_table
from .table.new_table import keys_of_new
from .table.table_name import ResolvedName, refuse_missing
from .write_batch import ask_for_each_table, named_sink
from .written import Upsert

_log = logging.getLogger("pgonce")

_CONNECT_SECONDS = 5  # Spark waits for a look before the rows.
_BOUNDS = (
    "SELECT pg_catalog.set_config('statement_timeout', '5s', true), pg_catalog.set_config('lock_timeout', '1s', true)"
)


@contextmanager
def looking(url: str) -> Iterator[psycopg.Connection]:
    """A new session for one look; nothing of it stays."""
    with connect(url, connect_timeout=_CONNECT_SECONDS) as connection:
        connection.read_only = True
        yield connection
        connection.rollback()


# What this process has already seen to fit. A look proves nothing for later, so one is enough.
_seen_to_fit: set[tuple[Hashable, Destination | Routes, tuple[EncodedColumn, ...]]] = set()


def look_once(
    query: Hashable,
    url: str,
    where: Destination | Routes,
    columns: tuple[EncodedColumn, ...] | None,
    *,
    rooms: Rooms,
    at_the_door: bool = True,
) -> None:
    """
    Refuse a table that is missing or unfit; once for each ``query``, table (or list of tables) and frame.

    :param columns: None as long as there is no frame: then each table alone is looked at.
    :param at_the_door: whether an error at login is raised here, and not left to the commit.
    :raises ConfigurationError: BAD_URL.
    :raises ConnectError: CONNECT_REFUSED.
    :raises TargetError: as the commit would.
    """
    if columns is not None and (query, where, columns) in _seen_to_fit:
        return
    try:
        with looking(url) as connection:
            _look(connection, where, columns, rooms)
    except ConnectError as error:
        if at_the_door and not error.may_pass:
            raise
        _log.info("the commit will check the target: %s", error)
    except psycopg.errors.InsufficientPrivilege as error:
        # The table cannot even be looked up, so no batch can be written into it.
        raise target_error(error) from None
    except psycopg.Error as error:
        _log.info("the commit will check the target: SQLSTATE %s", error.sqlstate)
    else:
        if columns is not None:
            _seen_to_fit.add((query, where, columns))


def _found(connection: psycopg.Connection, destination: Destination) -> tuple[ResolvedName, TargetTable | None]:
    """The table's name, and the table, which can be written into; None if it is to be created."""
    found, table = look_up_table(connection, destination.table)
    if table is not None:
        check_table(table, destination)
        return found, table
    refuse_missing(connection, found, creates=destination.create_table)
    return found, None


def _look(
    connection: psycopg.Connection, where: Destination | Routes, columns: Sequence[EncodedColumn] | None, rooms: Rooms
) -> None:
    connection.execute(_BOUNDS)
    each = where.each if isinstance(where, Routes) else (Route("", where),)
    if isinstance(where, Routes):
        ask_for_each_table(connection, where)()
    there: list[tuple[TargetTable, Destination]] = []
    for route in each:
        if columns is None:
            _found(connection, route.destination)
        elif table := look_at_table(connection, route.destination, route.written(columns), rooms=rooms):
            there.append((table, route.destination))
    if any(to.changes for _, to in there):
        rooms.by_key().refuse_actions_between([(table, to.changes) for table, to in there])
    refuse_reaching_others(connection, [table for table, to in there if to.mode == "complete"])


def look_at_table(
    connection: psycopg.Connection, destination: Destination, columns: Sequence[EncodedColumn], *, rooms: Rooms
) -> TargetTable | None:
    """
    Refuse a table that cannot take rows of these columns from the session's role, under the user's search_path.

    :return: the table as it will be; None if it is to be created.
    :raises TargetError: as the commit would.
    """
    found, table = _found(connection, destination)
    if table is None:
        keys_of_new(found, columns, destination)
        return None
    if destination.schema_evolution == "addColumns":
        table = rooms.new_columns().look_as_altered(connection, table, columns, destination)
    plan = plan_columns(table, without_extra(table, columns, destination), destination)
    upsert = rooms.by_key().plan_upsert(destination, plan, table, columns) if destination.mode in BY_KEY else None
    refuse_missing_privileges(connection, table, plan, upsert, destination)
    return table


# Of columns, because a role may have been granted some of them only. All names are qualified: the user's search_path is
# in force.
_WITH_PRIVILEGE = """
ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute AS a
      WHERE a.attrelid OPERATOR(pg_catalog.=) {{oid}}::pg_catalog.oid
        AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
        AND pg_catalog.has_column_privilege(a.attrelid, a.attnum, '{}'))
"""
_HELD = (
    "SELECT current_user::pg_catalog.text, pg_catalog.has_table_privilege({oid}::pg_catalog.oid, 'DELETE'), "
    + ", ".join(_WITH_PRIVILEGE.format(privilege) for privilege in ("INSERT", "UPDATE", "SELECT"))
)


def refuse_missing_privileges(
    connection: psycopg.Connection,
    table: TargetTable,
    plan: Sequence[ColumnPlan],
    upsert: Upsert | None,
    destination: Destination,
) -> None:
    """:raises TargetError: TARGET_NOT_PERMITTED, with the GRANT that is missing."""
    row = connection.execute(sql.SQL(_HELD).format(oid=table.oid), prepare=False).fetchone()
    if row is None:
        return
    role, may_delete, insertable, updatable, readable = row
    there = {column.column_name for column in table.columns if column.type_oid}
    missing = []
    if destination.changes is None or not destination.changes.all_delete:
        missing += _lacking("INSERT", [column.target for column in plan], insertable, there)
    if upsert is not None:
        updates = destination.mode == "upsert" and not upsert.existing.stored_stays
        changed = upsert.changed(plan) if updates else []
        # Postgres asks for SELECT on a column that is set to the value of EXCLUDED.
        missing += _lacking("SELECT", [*(key.target for key in upsert.keys), *changed], readable, there)
        missing += _lacking("UPDATE", changed, updatable, there)
    if destination.mode == "complete" and not may_delete:
        missing.append("DELETE")
    if missing:
        name = table.identifier.as_string(None)
        raise bad_target(
            "TARGET_NOT_PERMITTED",
            f"The role {role} lacks {' and '.join(missing)} on {table.qualified_name}, which every batch with "
            f"mode={destination.mode} needs.",
            f"GRANT {', '.join(missing)} ON {name} TO {sql.Identifier(role).as_string(None)};",
        )


def _lacking(privilege: str, needed: Sequence[str], held: Sequence[str], there: set[str]) -> list[str]:
    """The privilege as GRANT names it; empty if the role has it on all needed columns that are there."""
    lacking = [name for name in needed if name in there and name not in held]
    if not lacking:
        return []
    if not held:
        return [privilege]
    return [f"{privilege} ({', '.join(sql.Identifier(name).as_string(None) for name in lacking)})"]


def refuse_first_batch(
    settings: CommitSettings, batch: PlannedBatch | None, sink_name: str | None, where: Destination | Routes | None
) -> str | None:
    """
    Refuse batch 0 of a query where the ledger shows a rival, or the role may not write the ledger.

    :param batch: None for a batch job, which has no rivals. A batch that is not a query's first passes.
    :param where: None where the tables are known only when they are written to.
    :return: of a batch job, the sink's name; None if Postgres cannot be asked now.
    :raises LedgerError: LEDGER_NOT_PERMITTED.
    :raises RefusedBatch: as the commit would.
    :raises TargetError: as the commit would, for a table's name.
    """
    if batch is not None and batch.batch_id > 0:
        return None
    try:
        with looking(settings.url) as connection:
            named = NamedSink(sink_name or "") if where is None else named_sink(connection, sink_name, where)
            enter_in_tx(connection, lock_seconds=1, statement_seconds=5)
            may_be_recorded = _may_be_recorded(connection, OF_ANY_BATCH if batch else OF_ANY_JOB)
            if batch is None or not may_be_recorded:
                return None if batch else named.name
            first = batch.into(named.name, named.tables)
            has_past = settings.remedies.replaces is not None or concern_in_tx(connection, first)
        # Most queries find nothing of the kind, and then nothing imports SQLAlchemy before the commit does.
        ledger = _what_is_known(settings, first) if has_past else Ledger()
    except ConnectError as error:
        _log.info("the commit will check the ledger: %s", error)
    except psycopg.Error as error:
        _log.info("the commit will check the ledger: %s", type(error).__name__)
    else:
        if ledger is None:
            return None
        remedies = settings.remedies
        # The rows may carry positions, which tell which of them the replaced query has stored.
        is_for_rows = first.span is None and stored_positions(ledger, remedies) is not None
        if not is_for_rows and (verdict := decide(ledger, first, remedies)) not in PUBLISH | SKIP:
            raise refusal(verdict, ledger, first, remedies)
    return None


def _may_be_recorded(connection: psycopg.Connection, needed: Sequence[Needed]) -> bool:
    """Whether there is a ledger to read; :raises LedgerError: if the role can neither write it nor create one."""
    try:
        require_ledger(connection)
    except LedgerError as error:
        if isinstance(error, NoLedgerError) and not may_create_schema(connection):
            raise _not_permitted(f"create the schema {SCHEMA}, which is not there yet") from None
        # The commit will create it, bring it up to date, or say why it cannot.
        return False
    if missing := missing_on_ledger(connection, needed):
        raise _not_permitted(f"record a batch: it lacks {listed(missing)}")
    return True


def _not_permitted(what: str) -> LedgerError:
    return LedgerError("LEDGER_NOT_PERMITTED", f"The role may not {what}.", NOTHING, GRANTS_NEEDED)


def _what_is_known(settings: CommitSettings, batch: Batch) -> Ledger | None:
    """As :func:`unknown_writer_in_tx`; None also if the ledger cannot be read now."""
    import sqlalchemy.exc

    from pgonce.offsets_store.ledger.lock import unknown_writer_in_tx

    try:
        with lone(settings.url, connect_timeout=_CONNECT_SECONDS) as connection:
            driver = driver_connection(connection)
            driver.read_only = True
            enter_in_tx(driver, lock_seconds=1, statement_seconds=5)
            known = unknown_writer_in_tx(connection, batch, settings.remedies.replaces)
            driver.rollback()
            return known
    except sqlalchemy.exc.SQLAlchemyError as error:
        _log.info("the commit will check the ledger: %s", type(error).__name__)
        return None
