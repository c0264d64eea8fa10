"""
Number the rows of a batch in the order in which they are to be written, and say how a part of them is written.

Runs in the commit, before rows are written in their turn. Invariant: where the order of changes matters, and is not
known, the batch is refused. Elsewhere rows of an unknown order are written in that in which they came.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from ..by_key.apply import MOVED, STAGES, Begun, begin_in_tx, doubled_keys, lock_rows_in_tx, needs_changes
from ..by_key.change_table import ChangeTable
from ..by_key.deciding_changes import all_changes, keys_of, wanted_changes
from ..by_key.keys import ComparedUpsert, delete_action, deletes_act_on_itself
from ..by_key.one_by_one import COUNTED, FIRST, IS_DELETE, IS_WRITE, LAST, NUMBER, part_of_changes
from ..by_key.statements import insert_in_turn, lacks_order, value_as_assigned
from ..by_key.tombstone_sets import own_set_in_tx
from ..by_key.tombstones import keep_in_tx
from ..by_key.trigger_outcome import TriggerOutcome
from ..by_key.unread_value import UNREAD
from ..by_key.upsert import compare_in_tx, doubled_key, refuse_several_origins
from ..checked_table import ColumnPlan
from ..rows import RELEASE, GatheredRows
from ..written import Written
from .about_a_row import BadRow

_log = logging.getLogger("pgonce")

TURN, PLACE = sql.Identifier("pgonce: turn"), sql.Identifier("pgonce: place")
"""Columns: the row's place in the order, which does not change; and its place in the table of gathered rows."""
BETWEEN = sql.SQL("{0} OPERATOR(pg_catalog.>=) {1} AND {0} OPERATOR(pg_catalog.<=) {2}").format(NUMBER, FIRST, LAST)
"""The condition that picks a part of the numbered rows."""


def lacking_rows(
    connection: psycopg.Connection, gathered: GatheredRows, written: Written
) -> tuple[list[BadRow], GatheredRows]:
    """The rows that have NULL where none may be, and the others."""
    upsert = written.upsert
    if upsert is None:
        return [], gathered
    is_null = [sql.SQL("{} IS NULL").format(sql.Identifier(key.source)) for key in upsert.keys]
    found: list[tuple[str, ColumnPlan, sql.Composable]] = [
        ("NULL_KEYS", key, condition) for key, condition in zip(upsert.keys, is_null, strict=True)
    ]
    if upsert.order_by is not None:
        found.append(("NULL_ORDER", upsert.order_by, lacks_order(upsert, written.columns)))
    lacks = sql.SQL(" OR ").join(condition for *_, condition in found)
    query = sql.SQL("SELECT ctid::pg_catalog.text, {} FROM {} WHERE {} AND ({})").format(
        sql.SQL(", ").join(condition for *_, condition in found), gathered.source, gathered.wanted, lacks
    )
    bad = []
    for place, *flags in connection.execute(query, prepare=False).fetchall():
        code, column, _ = found[flags.index(True)]
        bad.append(BadRow(place, code, f"The row has NULL in {column.source!r}.", column.target))
    return bad, gathered.only(sql.SQL("({}) IS NOT TRUE").format(lacks)) if bad else gathered


def numbered_in_tx(
    connection: psycopg.Connection,
    rows: GatheredRows,
    table: sql.Identifier,
    order: Sequence[sql.Composable] = (),
    flags: Sequence[sql.Composable] = (),
) -> int:
    """
    Copy the rows to a temporary ``table`` with the numbers of their turns; return how many there are.

    :param order: what they are ordered by, before the place that each came to.
    """
    # Without a copy in their order, each part would have to be joined with all rows by their places.
    create = sql.SQL(
        "CREATE TEMPORARY TABLE {table} ON COMMIT DROP AS SELECT numbered.{turn} AS {number}, numbered.* FROM ("
        "SELECT pg_catalog.row_number() OVER (ORDER BY {order}) AS {turn}, {columns} "
        "FROM {source} AS given WHERE {wanted}) AS numbered ORDER BY 1"
    ).format(
        table=table,
        turn=TURN,
        number=NUMBER,
        order=sql.SQL(", ").join([*order, sql.SQL("ctid")]),
        columns=sql.SQL(", ").join([sql.SQL("ctid AS {}").format(PLACE), *flags, sql.SQL("given.*")]),
        source=rows.source,
        wanted=rows.wanted,
    )
    count = connection.execute(create, prepare=False).rowcount
    # One that is unique tells Postgres that a number finds one row.
    connection.execute(sql.SQL("CREATE UNIQUE INDEX ON {} ({})").format(table, NUMBER))
    return count


@dataclass(frozen=True)
class Turns:
    """
    The ``count`` rows of ``table``, numbered from 1, and ``part``, which writes those from FIRST to LAST, in PL/pgSQL.

    ``part`` draws a number for each row before it writes it; or, if ``begun`` is not None, it sets AT to the row's.
    ``batch`` describes rows that are written by key.
    """

    connection: psycopg.Connection
    table: sql.Identifier
    count: int
    part: sql.Composable
    batch: ChangeTable | None = None
    begun: Begun | None = None
    own_set: int | None = None
    outcome: TriggerOutcome | None = None

    @property
    def may_be_superseded(self) -> bool:
        """Whether a later change of its key replaces all that a row would write."""
        batch = self.batch
        if batch is None or batch.upsert.order_by is None:
            return False
        # A soft delete leaves what was written before it, and a stored row that stays is the first one.
        return not (batch.puts_together or batch.deletes_softly or batch.upsert.existing.stored_stays)

    def is_delete(self, number: sql.Composable) -> sql.Composable:
        """Whether the row of this number only deletes."""
        if self.begun is None:
            return sql.SQL("false")
        return sql.SQL("NOT (SELECT {} FROM {} WHERE {} OPERATOR(pg_catalog.=) {})").format(
            IS_WRITE, self.table, NUMBER, number
        )

    def again_in_tx(self, turns: Collection[int], behind: int, *, backwards: bool) -> None:
        """
        Give the rows of these turns new numbers, ``behind`` a number.

        :param backwards: whether the last key comes first, with its changes in their order: so a child of a child comes
            after its parent, and a row that takes a unique value after the row that had it. Not where keys depend on
            each other's order, because a delete may change other rows or a change has two keys.
        """
        batch = self.batch
        wanted = sql.SQL("{} OPERATOR(pg_catalog.=) ANY ({}::pg_catalog.int8[])").format(TURN, list(turns))
        chosen = sql.SQL("SELECT {} AS turn FROM {} WHERE {}").format(TURN, self.table, wanted)
        order = "turn DESC" if backwards else "turn"
        if batch is not None and batch.upsert.order_by is not None:
            order = "turn"
            if backwards and not (batch.moves or deletes_act_on_itself(batch.target, batch.changes)):
                changes = all_changes(batch, GatheredRows(self.table, wanted, len(turns)))
                newest = "SELECT {0} AS turn, pg_catalog.max({0}) OVER (PARTITION BY {1}) AS newest FROM {2} AS change"
                chosen, order = sql.SQL(newest).format(PLACE, keys_of(batch), changes), "newest DESC, turn"
        again = sql.SQL(_AGAIN).format(
            table=self.table, number=NUMBER, turn=TURN, behind=behind, chosen=chosen, order=sql.SQL(order)
        )
        self.connection.execute(again, prepare=False)

    def followed(self, turns: Collection[int], unwritten: Collection[int]) -> dict[int, bool]:
        """
        Those of the ``turns`` whose key was written by a later change, with whether that replaces all they would write.

        :param unwritten: the turns of all rows that are not written.
        """
        batch = self.batch
        if batch is None or batch.upsert.order_by is None:
            return {}
        query = sql.SQL(_FOLLOWED).format(
            place=PLACE,
            unwritten=sql.Literal(list(unwritten)),
            turns=sql.Literal(list(turns)),
            keys=keys_of(batch),
            changes=all_changes(batch, GatheredRows(self.table, sql.SQL("true"), self.count)),
        )
        found = self.connection.execute(query, prepare=False).fetchall()
        return {turn: every and self.may_be_superseded for turn, every in found}

    def counts(self, counted: Sequence[int], superseded: int) -> dict[str, int] | None:
        """What became of the rows, from what ``part`` has counted; None where that goes without saying."""
        begun = self.begun
        if begun is None:
            stays = self.batch is not None and self.batch.upsert.existing.stored_stays
            return {COUNTED[0]: counted[0]} if stays else None
        of = dict(zip(COUNTED, counted, strict=True))
        if self.own_set is not None:
            keep_in_tx(self.connection, begun.batch, self.own_set, of["remembered"])
        counts = {name: of.get(name, 0) for name in STAGES}
        counts["superseded"], counts["ignored"] = superseded, begun.ignored
        more = {MOVED: of["moved"], UNREAD: of["not_read"]}
        if more[UNREAD]:
            _log.warning(
                "%s rows are written to %s without a value that the source could not read, because nothing holds it: "
                "the row had another key before, or has NULL in the table (page `change-data` of the documentation)",
                more[UNREAD],
                begun.batch.target.qualified_name,
            )
        return counts | {name: number for name, number in more.items() if number}


_AGAIN = """
UPDATE {table} AS given SET {number} = again.number FROM (
    SELECT turn, {behind} OPERATOR(pg_catalog.+) pg_catalog.row_number() OVER (ORDER BY {order}) AS number
    FROM ({chosen}) AS chosen) AS again
WHERE given.{turn} OPERATOR(pg_catalog.=) again.turn
"""
_FOLLOWED = """
SELECT turn, pg_catalog.bool_and(is_followed) FROM (
    SELECT {place} AS turn, COALESCE((pg_catalog.max({place}) FILTER (
        WHERE {place} OPERATOR(pg_catalog.<>) ALL ({unwritten}::pg_catalog.int8[])) OVER (PARTITION BY {keys})
    ) OPERATOR(pg_catalog.>) {place}, false) AS is_followed
    FROM {changes} AS change) AS of
WHERE turn OPERATOR(pg_catalog.=) ANY ({turns}::pg_catalog.int8[]) GROUP BY turn HAVING pg_catalog.bool_or(is_followed)
"""


def turns_in_tx(
    connection: psycopg.Connection,
    rows: GatheredRows,
    written: Written,
    table: sql.Identifier,
    hint: sql.Composable,
) -> Turns:
    """
    Number the rows, which have all that their order and their keys need, in a new ``table``.

    :param hint: draws a number.
    :raises TargetError: if the rows, or the table, lack what writing by key needs; DELETE_ACTION, if the order of the
        changes matters and is not known.
    """
    upsert = written.upsert
    if upsert is None:
        count = numbered_in_tx(connection, rows, table)
        return Turns(connection, table, count, _set_at_once(table, hint, written, None))
    own_set = begun = None
    if needs_changes(upsert, written.changes):
        begun = begin_in_tx(connection, rows, written, in_turn=True)
        batch = begun.batch
        rows = wanted_changes(written.changes, rows)
        if begun.traced and begun.has_deletes:
            own_set = own_set_in_tx(connection, batch)
    else:
        _, compared = compare_in_tx(connection, written.table, upsert, sql.SQL("SELECT"))
        refuse_several_origins(connection, rows, written, compared, in_turn=True)
        batch = ChangeTable(table, written.table, written.plan, written.columns, compared, None)
    connection.execute(RELEASE)
    batch = replace(batch, place=TURN)
    count = _numbered_by_key_in_tx(connection, rows, table, batch, written)
    all_rows = GatheredRows(table, sql.SQL("true"), count)
    if batch.upsert.order_by is None and not (begun is None and batch.upsert.existing.stored_stays):
        one = doubled_key(connection, all_rows, batch.upsert)
        if one:
            raise doubled_keys(batch.upsert, one)
    if not batch.upsert.existing.stored_stays:
        changes = replace(batch, name=all_changes(batch, all_rows))
        lock_rows_in_tx(connection, changes, deletes=begun is not None and begun.has_deletes)
    if begun is None:
        return Turns(connection, table, count, _set_at_once(table, hint, written, batch.upsert), batch)
    outcome = TriggerOutcome(connection, batch)
    part = part_of_changes(batch, table, begun.tombstones, own_set, outcome)
    return Turns(connection, table, count, part, batch, begun, own_set, outcome)


def _set_at_once(
    table: sql.Identifier, hint: sql.Composable, written: Written, upsert: ComparedUpsert | None
) -> sql.Composable:
    rows = GatheredRows(table, BETWEEN, 0)
    insert = insert_in_turn(rows, NUMBER, hint, written.table.identifier, written.plan, upsert)
    counted = sql.SQL("GET DIAGNOSTICS done = ROW_COUNT; counts[1] := counts[1] OPERATOR(pg_catalog.+) done")
    return sql.SQL("; ").join([insert, counted])


def _numbered_by_key_in_tx(
    connection: psycopg.Connection, rows: GatheredRows, table: sql.Identifier, batch: ChangeTable, written: Written
) -> int:
    order: list[sql.Composable] = []
    deletes = sql.SQL("({} IS TRUE OR {})").format(batch.is_delete, batch.moved.is_moved)
    if batch.upsert.order_by is not None:
        value = value_as_assigned(batch.upsert.order_by, batch.upsert)
        order.append(sql.SQL("{} NULLS FIRST").format(value))
        if deletes_act_on_itself(written.table, written.changes):
            _refuse_tied(connection, rows, value, deletes, written.table.qualified_name)
    if batch.changes is not None and batch.changes.has_versions:
        # A version of a table that deletes a row and inserts it again has replaced it.
        order.append(sql.SQL("{} DESC").format(deletes))
    if batch.upsert.order_by is not None and batch.upsert.newer_by:
        # Of rows that tie the last one counts: where an equal one does not replace the stored row, it comes first.
        stays = sql.SQL("true") if batch.upsert.of_letters else sql.SQL("{} IS NULL").format(value)
        order.append(sql.SQL("CASE WHEN {} THEN ctid END DESC NULLS LAST").format(stays))
    named = sql.SQL("{} AS {}")
    is_write = sql.SQL("{} IS NOT TRUE").format(batch.is_delete)
    flags = [named.format(deletes, IS_DELETE), named.format(is_write, IS_WRITE)]
    return numbered_in_tx(connection, rows, table, order, flags)


def _refuse_tied(
    connection: psycopg.Connection, rows: GatheredRows, value: sql.Composable, deletes: sql.Composable, table: str
) -> None:
    """:raises TargetError: DELETE_ACTION, if a delete and a write have one value of orderBy."""
    both = sql.SQL(
        "SELECT FROM {source} WHERE {wanted} GROUP BY {value} "
        "HAVING pg_catalog.bool_or({deletes}) AND NOT pg_catalog.bool_and({deletes}) LIMIT 1"
    ).format(source=rows.source, wanted=rows.wanted, value=value, deletes=deletes)
    if connection.execute(both, prepare=False).fetchone() is not None:
        raise delete_action(
            f"Deleting rows of {table} changes other rows of it, by a foreign key with an action, and the batch has a "
            "delete and a write with the same value of orderBy: it is unknown whether a row had moved to another "
            "parent before its parent was deleted.",
            "Set orderBy to a column whose value is different for each change. Or let",
        )
