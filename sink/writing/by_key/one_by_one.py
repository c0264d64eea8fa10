"""
Compose what makes the changes of a batch one by one, in PL/pgSQL.

Pure; runs in the commit, where a batch cannot be written at once. Invariant: what a change does is what it would do as
the only one of a batch: the statements are those of :mod:`~pgonce.sink.writing.by_key.write_changes`, with a query for
one change in place of the table of changes.
"""

from __future__ import annotations

from dataclasses import replace

from psycopg import sql

from ...options.destination import OPERATION_COLUMN
from ..rows import GatheredRows
from .change_table import DELETED, ChangeTable
from .deciding_changes import all_changes
from .moved_rows import MovedRows
from .statements import insert_statement
from .tombstone_sets import Tombstones
from .tombstones import precedes_delete, remember_statement
from .trigger_outcome import TriggerOutcome
from .write_changes import delete_statement

FIRST, LAST, AT, NUMBER = (sql.Identifier(f"pgonce: {name}") for name in ("first", "last", "at", "number"))
"""The variables that say which rows are written, and which one was being written; and the column with their numbers."""
DUE_DELETES, DUE_WRITES = sql.Identifier("pgonce: due deletes"), sql.Identifier("pgonce: due writes")
"""Variables: how many deletes and writes the change at hand is. A user's column may be called as any other name is."""
IS_DELETE, IS_WRITE = sql.Identifier("pgonce: deletes"), sql.Identifier("pgonce: writes")
"""Columns of the numbered rows; both are true for a change that moves a row."""
COUNTED = ("written", "deleted", "not_found", "passed_over", "not_read", "remembered", "moved")
"""What the elements of the variable ``counts`` are."""
OUTCOME = "PGOOT"
"""What is raised in the server where a trigger, or a policy, changed the result."""
NOT_READ = "PGONR"
"""What is raised in the server for a row without a value that the source could not read."""
VARIABLES = sql.SQL("""
    "pgonce: due deletes" pg_catalog.int8;
    "pgonce: due writes" pg_catalog.int8;
    done pg_catalog.int8;
    absent pg_catalog.int8;
    lacking pg_catalog.text[];
    is_refused pg_catalog.bool;
""")


def part_of_changes(
    batch: ChangeTable,
    numbered: sql.Identifier,
    tombstones: tuple[Tombstones, ...],
    own_set: int | None,
    outcome: TriggerOutcome,
) -> sql.Composed:
    """
    Make the changes from FIRST to LAST, and add what became of them to ``counts``.

    :param numbered: the table of the rows, with their numbers.
    :param own_set: the set of tombstones in which deletes are remembered; None if they are not.
    """
    row = GatheredRows(numbered, sql.SQL("{} OPERATOR(pg_catalog.=) {}").format(NUMBER, AT), 1)
    change = all_changes(batch, row)
    if tombstones:
        older = sql.SQL(" AND ").join(sql.SQL("{} IS NOT TRUE").format(precedes_delete(batch, of)) for of in tombstones)
        change = sql.SQL("(SELECT * FROM {} AS change WHERE {})").format(change, older)
    one = replace(batch, name=change)
    due = sql.SQL(_THAT_IS_DUE).format(deletes=IS_DELETE, writes=IS_WRITE, row=row.source, wanted=row.wanted)
    steps: list[sql.Composable] = [due]
    if tombstones:
        steps += [sql.SQL(_THAT_ARE_DUE).format(change=change, deleted=DELETED), sql.SQL(_PASSED_OVER)]
    if batch.changes is not None and batch.changes.deletes != "ignore":
        steps += [sql.SQL(_IF_DUE).format(DUE_DELETES, _delete(one, own_set))]
    steps += [sql.SQL(_IF_DUE).format(DUE_WRITES, _write(one, row, outcome))]
    if outcome.is_checked:
        steps.append(_raised(outcome.others(one)))
    return sql.SQL("FOR n IN {} .. {} LOOP {} := n; {}; END LOOP; {} := NULL").format(
        FIRST, LAST, AT, sql.SQL("; ").join(steps), AT
    )


# Operators that are named with their schema have no precedence.
_THAT_IS_DUE = """
SELECT {deletes}::pg_catalog.int4, {writes}::pg_catalog.int4 INTO "pgonce: due deletes", "pgonce: due writes"
FROM {row} WHERE {wanted};
counts[7] := counts[7] OPERATOR(pg_catalog.+) ("pgonce: due deletes" OPERATOR(pg_catalog.*) "pgonce: due writes")
"""
_IF_DUE = "IF {} OPERATOR(pg_catalog.>) 0 THEN {} END IF"
_THAT_ARE_DUE = """
SELECT "pgonce: due deletes" OPERATOR(pg_catalog.+) "pgonce: due writes" OPERATOR(pg_catalog.-) pg_catalog.count(*),
    pg_catalog.count(*) FILTER (WHERE {deleted}), pg_catalog.count(*) FILTER (WHERE NOT {deleted})
INTO done, "pgonce: due deletes", "pgonce: due writes" FROM {change} AS change
"""
_PASSED_OVER = "counts[4] := counts[4] OPERATOR(pg_catalog.+) done"


def _delete(one: ChangeTable, own_set: int | None) -> sql.Composed:
    counted = sql.SQL("SELECT pg_catalog.count(*) INTO absent FROM {} AS change WHERE change.{} AND {}").format(
        one.name, DELETED, one.is_absent()
    )
    remember = counted
    if own_set is not None:
        remember = sql.SQL(_REMEMBERED).format(remember_statement(one, one.is_absent(), own_set))
    if one.deletes_softly:
        # A marked row is there. Only what never was is absent.
        return sql.SQL(_SOFT).format(delete_statement(one), remember)
    return sql.SQL(_HARD).format(delete_statement(one), remember if own_set is not None else counted)


_REMEMBERED = "{}; GET DIAGNOSTICS absent = ROW_COUNT; counts[6] := counts[6] OPERATOR(pg_catalog.+) absent"
# What was deleted is absent now.
_HARD = """
{}; GET DIAGNOSTICS done = ROW_COUNT;
{};
counts[2] := counts[2] OPERATOR(pg_catalog.+) done;
counts[3] := counts[3] OPERATOR(pg_catalog.+) absent OPERATOR(pg_catalog.-) done;
counts[4] := counts[4] OPERATOR(pg_catalog.+) 1 OPERATOR(pg_catalog.-) absent;
"""
_SOFT = """
{}; GET DIAGNOSTICS done = ROW_COUNT;
counts[2] := counts[2] OPERATOR(pg_catalog.+) done;
IF done OPERATOR(pg_catalog.=) 0 THEN
    {};
    counts[3] := counts[3] OPERATOR(pg_catalog.+) absent;
    counts[4] := counts[4] OPERATOR(pg_catalog.+) 1 OPERATOR(pg_catalog.-) absent;
END IF;
"""


def _write(one: ChangeTable, row: GatheredRows, outcome: TriggerOutcome) -> sql.Composed:
    source, wanted = sql.SQL("{} AS change").format(one.name), sql.SQL("NOT {}").format(DELETED)
    insert = insert_statement(source, wanted, one.target, one.written, one.reduced_upsert)
    whole = sql.SQL("{}; GET DIAGNOSTICS done = ROW_COUNT").format(insert)
    steps = [_write_what_was_read(one, row, whole) if one.unread else whole, sql.SQL(_COUNTED)]
    if outcome.gives_way and outcome.is_checked:
        steps.append(_raised(sql.SQL("SELECT 1 OPERATOR(pg_catalog.-) done")))
    return sql.SQL("{};").format(sql.SQL("; ").join(steps))


_COUNTED = (
    "counts[1] := counts[1] OPERATOR(pg_catalog.+) done; "
    'counts[4] := counts[4] OPERATOR(pg_catalog.+) "pgonce: due writes" OPERATOR(pg_catalog.-) done'
)


def _raised(count: sql.Composed | sql.SQL) -> sql.Composed:
    return sql.SQL("IF ({}) OPERATOR(pg_catalog.>) 0 THEN RAISE 'changed' USING ERRCODE = {}; END IF").format(
        count, OUTCOME
    )


def _write_what_was_read(one: ChangeTable, row: GatheredRows, whole: sql.Composable) -> sql.Composed:
    """
    Write the change, but for the values that the source could not read: these stay as they are stored.

    A write whose row would be new, or moves, is refused; but an insert of the source has no earlier value anywhere.

    :param whole: writes a change that lacks no value.
    """
    not_null = {column.column_name for column in one.target.columns if column.not_null}
    names = sql.SQL(", ").join(
        sql.SQL("CASE WHEN change.{} THEN {} END").format(flag, sql.Literal(name)) for name, flag in one.unread.items()
    )
    # Postgres would refuse NULL in such a column without saying that a value was not read.
    needed = [sql.SQL("change.{}").format(flag) for name, flag in one.unread.items() if name in not_null]
    changed = one.reduced_upsert.changed(one.written)
    is_null = sql.SQL("change.{} AND target.{} IS NULL")
    stored_nulls = [is_null.format(flag, sql.Identifier(name)) for name, flag in one.unread.items() if name in changed]
    return sql.SQL(_WHAT_WAS_READ).format(
        names=names,
        change=one.name,
        deleted=DELETED,
        whole=whole,
        exists=one.exists(),
        rows=row.source,
        at=sql.SQL("given.{} OPERATOR(pg_catalog.=) {}").format(NUMBER, AT),
        is_insert=_is_source_insert(one),
        is_moved=MovedRows(one.columns, one.upsert).is_moved,
        needed=_any(needed),
        code=NOT_READ,
        stays_null=one.exists(sql.SQL("{} AND ({})").format(one.not_older(), _any(stored_nulls))),
        insert=_insert_new(one),
        update=_update_read(one, changed) if changed else sql.SQL("NULL;"),
    )


# What is left without its value is counted: a new row, and a stored one that has NULL.
_WHAT_WAS_READ = """
SELECT pg_catalog.array_remove(ARRAY[{names}]::pg_catalog.text[], NULL) INTO lacking
FROM {change} AS change WHERE NOT change.{deleted};
IF pg_catalog.cardinality(lacking) OPERATOR(pg_catalog.=) 0 THEN
    {whole};
ELSE
    SELECT (SELECT {is_moved} OR NOT {exists} AND ({needed} OR NOT {is_insert}) FROM {rows} AS given WHERE {at}),
        (NOT {exists} OR {stays_null})::pg_catalog.int4
    INTO is_refused, absent FROM {change} AS change WHERE NOT change.{deleted};
    IF is_refused THEN
        RAISE EXCEPTION USING ERRCODE = {code}, COLUMN = lacking[1], MESSAGE = pg_catalog.concat(
            'The source could not read ', pg_catalog.array_to_string(lacking, ', '),
            ', and the table has no row that holds the value.');
    END IF;
    counts[5] := counts[5] OPERATOR(pg_catalog.+) absent;
    {insert};
    GET DIAGNOSTICS done = ROW_COUNT;
    IF done OPERATOR(pg_catalog.=) 0 THEN {update} END IF;
END IF
"""


def _any(conditions: list[sql.Composed]) -> sql.Composable:
    return sql.SQL(" OR ").join([sql.SQL("false"), *conditions])


def _is_source_insert(one: ChangeTable) -> sql.Composable:
    """Whether a gathered row ``given`` is what Debezium calls an insert."""
    has_operation = one.changes is not None and one.changes.feed == "debezium"
    if not has_operation or OPERATION_COLUMN not in {column.name for column in one.columns}:
        return sql.SQL("false")
    return sql.SQL("given.{} OPERATOR(pg_catalog.=) ANY (ARRAY['c', 'r'])").format(sql.Identifier(OPERATION_COLUMN))


def _insert_new(one: ChangeTable) -> sql.Composed:
    """Inserts the row if its key is new."""
    return sql.SQL(
        "INSERT INTO {table} AS target ({names}) SELECT {names} FROM {change} AS change "
        "WHERE NOT {deleted} AND NOT {exists} ON CONFLICT ({keys}) DO NOTHING"
    ).format(
        table=one.target.identifier,
        names=sql.SQL(", ").join(sql.Identifier(column.target) for column in one.written),
        change=one.name,
        deleted=DELETED,
        exists=one.exists(),
        keys=sql.SQL(", ").join(sql.Identifier(key.target) for key in one.upsert.keys),
    )


def _update_read(one: ChangeTable, changed: list[str]) -> sql.Composed:
    """Updates the row that is there, except for values that were not read, and counts it."""
    keeps = sql.SQL("{0} = CASE WHEN change.{1} THEN target.{0} ELSE change.{0} END")
    sets = [
        keeps.format(sql.Identifier(name), one.unread[name])
        if name in one.unread
        else sql.SQL("{0} = change.{0}").format(sql.Identifier(name))
        for name in changed
    ]
    update = sql.SQL("UPDATE {} AS target SET {} FROM {} AS change WHERE NOT change.{} AND {} AND {}").format(
        one.target.only, sql.SQL(", ").join(sets), one.name, DELETED, one.same_key(), one.not_older()
    )
    return sql.SQL("{}; GET DIAGNOSTICS done = ROW_COUNT;").format(update)
