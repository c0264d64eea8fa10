"""
Apply the changes of a batch to the target: writes and deletes, in their order, and only those that are newer.

Runs in the commit. Invariant: every row of the batch is counted once, as one of :data:`STAGES`, and the statement that
writes a row is the one that compares it. Writes lock rows in the order of their keys. Deletes come before them, so that
two batches with the same keys may wait for each other; Postgres ends one of the two, which is tried again.

The steps, in this order:

1. look at the rows and at the target's indexes: ``compare_in_tx``
2. reduce the rows of each key to the changes that decide what is left of it: ``create_deciding``
3. pass over what is older than a delete that is remembered: ``pass_over_in_tx``
4. delete, and remember what was deleted: ``delete_in_tx``
5. write the others: ``write_in_tx``; soft deletes come after that, of rows that were locked: ``delete_softly_in_tx``
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NullOrderError, TargetError, bad_target

from ...options.destination import Changes
from ..rows import RELEASE, GatheredRows
from ..table.lock import take_turn_of_newer_in_tx
from ..written import WRITTEN, MustTakeTurnsError, Upsert, Written
from .change_table import ChangeTable
from .deciding_changes import create_deciding, wanted_changes
from .keys import ComparedUpsert, deletes_act_on_itself, execute_joined
from .moved_rows import refuse_moved
from .tombstone_sets import Tombstones, tombstones_in_tx
from .tombstones import is_traceable, pass_over_in_tx, refuse_unordered, refuse_untraceable
from .trigger_outcome import TriggerOutcome
from .upsert import compare_in_tx, doubled_key, null_keys, refuse_several_origins, upsert_in_tx
from .write_changes import (
    count_deletes_in_tx,
    delete_in_tx,
    delete_softly_in_tx,
    refuse_soft_column,
    write_in_tx,
)

STAGES = (WRITTEN, "deleted", "superseded", "passed_over", "not_found", "ignored")
"""What becomes of a row: each is counted as one of these, and in ``pgonce.batches`` they add up to the batch's rows."""
MOVED = "moved"
"""The count of rows that moved: what became of their old rows is counted among :data:`STAGES` too."""

_counter = itertools.count()


def write_by_key_in_tx(
    connection: psycopg.Connection, rows: GatheredRows, written: Written
) -> Mapping[str, int] | None:
    """
    Write ``rows``, reduced first where that is needed; return what they are counted as, if all do not replace rows.

    :raises TargetError: if the rows, or the table, lack what writing by key needs.
    :raises MustTakeTurnsError: if the rows cannot be reduced to what decides.
    :raises psycopg.Error: what Postgres says of the rows; the commit translates it.
    """
    if needs_changes(written.by_key, written.changes):
        return apply_in_tx(connection, rows, written)
    done = upsert_in_tx(connection, rows, written)
    return {WRITTEN: done} if written.by_key.existing.stored_stays else None


def needs_changes(upsert: Upsert, changes: Changes | None) -> bool:
    """Whether rows must be reduced before they are written, because they do more than replace a stored row."""
    return changes is not None or upsert.existing.reads_stored(has_order=upsert.order_by is not None)


@dataclass(frozen=True)
class Begun:
    """
    What is known of a batch of changes before any is made: their number, those that delete, and those that move a row.

    ``traced`` says whether deletes are remembered. If no row lacks a value that the source could not read, ``batch`` is
    as it would be without ``keepWhere``.
    """

    batch: ChangeTable
    count: int
    deletes: int
    moved: int
    traced: bool
    tombstones: tuple[Tombstones, ...]

    @property
    def ignored(self) -> int:
        """How many deletes are left out."""
        return self.deletes if self.batch.changes and self.batch.changes.deletes == "ignore" else 0

    @property
    def has_deletes(self) -> bool:
        """Whether a row of the target may be deleted."""
        return self.deletes + self.moved > self.ignored


def begin_in_tx(
    connection: psycopg.Connection, rows: GatheredRows, written: Written, *, in_turn: bool = False
) -> Begun:
    """
    Look at the rows and at the target, and take the locks that are needed where only newer rows are written.

    :param in_turn: whether the rows are to be written in their turn, because all at once was refused.
    :raises TargetError: if rows lack keys or an order, or the table cannot be written in this way.
    """
    table, changes = written.table, written.changes
    upsert = written.by_key
    uncompared = ComparedUpsert(upsert.keys, upsert.order_by, upsert.existing)
    batch = ChangeTable(_name(), table, written.plan, written.columns, uncompared, changes)
    found, compared = compare_in_tx(connection, table, upsert, batch.facts(rows))
    count, deletes, moved, unread = _checked_rows(found, compared, written)
    refuse_several_origins(connection, rows, written, compared, in_turn=in_turn)
    if not unread:
        compared = replace(compared, existing=replace(compared.existing, keep_where=None))
    batch = replace(batch, upsert=compared)
    refuse_soft_column(table, changes, compared)
    traced = compared.existing.only_newer and is_traceable(batch)
    tombstones: tuple[Tombstones, ...] = ()
    if compared.existing.only_newer:
        refuse_unordered(batch)
        if changes and changes.deletes != "ignore":
            refuse_untraceable(batch)
        take_turn_of_newer_in_tx(connection, table.oid)
        tombstones = tombstones_in_tx(connection, batch, traced=traced)
    return Begun(replace(batch, moves=moved > 0), count, deletes, moved, traced, tombstones)


def apply_in_tx(connection: psycopg.Connection, rows: GatheredRows, written: Written) -> dict[str, int]:
    """
    Apply the changes that ``rows`` are, and return how many came to each of :data:`STAGES`.

    :raises TargetError: if rows lack keys or an order, keys are doubled, or the table cannot be written in this way.
    :raises MustTakeTurnsError: if a delete may change other rows that the batch writes, or a row would have values of
        several changes.
    :raises psycopg.Error: what Postgres says of the rows; the commit translates it.
    """
    begun = begin_in_tx(connection, rows, written)
    batch, count, moved, tombstones = begun.batch, begun.count, begun.moved, begun.tombstones
    compared, traced = batch.upsert, begun.traced
    has_deletes = begun.has_deletes
    if batch.unread or (has_deletes and deletes_act_on_itself(written.table, written.changes)):
        _leave_to_turns(connection)
    counts = dict.fromkeys(STAGES, 0)
    counts["ignored"] = begun.ignored
    if moved:
        counts[MOVED], count = moved, count + moved
    kept = connection.execute(create_deciding(batch, rows, deletes_matter=has_deletes), prepare=False).rowcount
    counts["superseded"] = count - counts["ignored"] - kept
    if counts["superseded"] and compared.order_by is None:
        raise doubled_keys(compared, doubled_key(connection, wanted_changes(written.changes, rows), compared))
    if counts["superseded"] and batch.frozen:
        _leave_to_turns(connection)
    left = kept - pass_over_in_tx(connection, batch, tombstones, kept)
    counts["passed_over"] = kept - left
    deletes = count_deletes_in_tx(connection, batch) if has_deletes else 0
    outcome = TriggerOutcome(connection, batch)
    marks = bool(deletes and batch.deletes_softly)
    if marks:
        lock_rows_in_tx(connection, batch, deletes=True)
    elif deletes:
        delete_in_tx(connection, batch, deletes, counts, traced=traced)
    counts[WRITTEN] = write_in_tx(connection, batch, left - deletes, is_last=not marks)
    counts["passed_over"] += left - deletes - counts[WRITTEN]
    if marks:
        delete_softly_in_tx(connection, batch, deletes, counts, traced=traced)
    outcome.refuse_another(counts["passed_over"])
    return counts


def _name() -> sql.Identifier:
    return sql.Identifier("pg_temp", f"pgonce_changes_{next(_counter)}")


def _leave_to_turns(connection: psycopg.Connection) -> NoReturn:
    # Released, because an error of another table of the batch would go back to it.
    connection.execute(RELEASE)
    raise MustTakeTurnsError


def _checked_rows(found: tuple[Any, ...] | None, upsert: ComparedUpsert, written: Written) -> tuple[int, int, int, int]:
    """How many rows the batch has; how many of them delete, move a row, and lack a value that was not read."""
    table = written.table
    rows, deletes, without_key, without_order, moved, unclear, unread = found or (0,) * 7
    if without_key:
        raise null_keys(without_key, upsert)
    if without_order and upsert.order_by:
        raise NullOrderError.usual(
            "NULL_ORDER",
            f"{without_order} rows of the batch have NULL in {upsert.order_by.source!r}, which orderBy names, so "
            "onlyNewer cannot tell whether they are newer than the stored rows.",
            "Filter these rows out, or give them a value, before they are written.",
        )
    if not upsert.has_index:
        raise bad_target(
            "NO_UNIQUE_KEY",
            f"{table.qualified_name} has no unique index by which rows could be found: on exactly "
            f"{', '.join(key.target for key in upsert.keys)}, without WHERE or WITHOUT OVERLAPS, not on expressions, "
            "and not deferrable.",
            "Create a unique constraint or index on exactly the key columns.",
        )
    refuse_moved(written, moved, unclear)
    return rows, deletes, moved, unread


def doubled_keys(upsert: Upsert, one: str) -> TargetError:
    """The error for rows with one key and without an order; ``one`` is a sentence about such a key, or empty."""
    return bad_target(
        "DOUBLED_KEYS",
        f"Rows of the batch have the same key ({', '.join(k.source for k in upsert.keys)}), and without orderBy it is "
        f"unknown which of them is the last.{f' {one}.' if one else ''}",
        "Set orderBy to a column that grows with every change of a key.",
    )


def lock_rows_in_tx(connection: psycopg.Connection, batch: ChangeTable, *, deletes: bool) -> None:
    """
    Lock the stored rows of the changes in the order of their keys.

    Soft deletes come before writes, and rows have turns: without this, two batches could wait for each other's rows.
    """
    locks = sql.SQL(
        "SELECT pg_catalog.count(*) FROM (SELECT FROM {} AS target JOIN {} AS change ON {} ORDER BY {} "
        "FOR {} OF target) AS locked"
    ).format(
        batch.target.only,
        batch.name,
        batch.same_key(),
        batch.keys_in_order("change"),
        sql.SQL("UPDATE" if deletes else "NO KEY UPDATE"),
    )
    execute_joined(connection, locks, batch.upsert)
