"""
Write rows that were put aside, and have been repaired since, into the table that they were for.

Runs in the command ``pgonce``, without Spark's JVM. Invariant: rows are written, their letters deleted and that is
noted in one transaction, or nothing is; the rows pass every check that a batch's rows pass; a letter whose row is
refused, or changes nothing, stays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

import psycopg
import sqlalchemy.exc
from psycopg import sql
from sqlalchemy import Connection, func, select

from pgonce.dead_letters.chosen_letters import (
    Choice,
    letters_in_tx,
    lock_writers_in_tx,
    remove_letters_in_tx,
)
from pgonce.every_room import EVERY_ROOM
from pgonce.offsets_store.commit.one_transaction import begin_in_tx, committing, session_of_a_try
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.transaction_state import TransactionState, as_it_began_in_tx, refuse_lost_on_crash
from pgonce.offsets_store.commit.work import Outcome
from pgonce.offsets_store.errors import UNCHANGED, LedgerError, PgonceError, TargetError, UnknownOutcomeError
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.postgres.lock_watch import LockWatch
from pgonce.offsets_store.postgres.refused_rows import target_error
from pgonce.offsets_store.postgres.search_path import ENTER_COLUMNS, leave_in_tx
from pgonce.offsets_store.postgres.translate import driver_error, ledger_error
from pgonce.offsets_store.status.dead_letters import StoredLetter
from pgonce.sink.encoding.encoded_types import EncodedColumn
from pgonce.sink.options.destination import Destination
from pgonce.sink.writing.bad_rows.recalled_destination import recalled, recorded_oid
from pgonce.sink.writing.checked_table import without_extra
from pgonce.sink.writing.rows import Rows
from pgonce.sink.writing.table.catalogue import look_up_table, parents_first
from pgonce.sink.writing.table.table_name import ask_for_tables, resolve_table
from pgonce.sink.writing.write_batch import write_batch_in_tx

from .decoded_letters import decoded_in_tx
from .mended_rows import mended_rows_in_tx, only, ranked_in_tx
from .replay_rules import (
    Kept,
    LetterRows,
    refuse_begun_again_in_tx,
    refuse_other_table,
    refuse_other_target,
    refuse_unsafe,
    write_letters_in_tx,
)

_APPLICATION = "pgonce dead-letters"
_MOST_NAMED = 20


@dataclass(frozen=True)
class Group:
    """
    Letters whose rows go into one table in one way, with what became of these, where the mode counts that.

    ``oid`` is that of the table that they were for; None if it was not recorded. ``kept`` are the letters that stay.
    """

    destination: Destination
    columns: tuple[EncodedColumn, ...]
    letters: tuple[StoredLetter, ...]
    oid: int | None = None
    counts: dict[str, int] | None = None
    kept: tuple[Kept, ...] = ()

    @property
    def replayed(self) -> tuple[StoredLetter, ...]:
        """The letters that are done."""
        kept = {one.letter.dead_letter_id for one in self.kept}
        return tuple(letter for letter in self.letters if letter.dead_letter_id not in kept)


def replay_letters(
    choice: Choice,
    url: str = "",
    *,
    reason: str | None = None,
    dry_run: bool = False,
    settings: CommitSettings | None = None,
) -> list[Group]:
    """
    Write the rows of the chosen letters, take these out, and note it.

    A letter whose row is refused, or changes nothing, stays. A dry run writes the same rows in a transaction that is
    rolled back.

    :raises OffsetsError: DEAD_LETTER_NOT_FOUND.
    :raises RecoveryError: REPLAY_IMPOSSIBLE, DEAD_LETTER_UNMENDED.
    :raises TargetError: if Postgres refuses something else than a row.
    :raises CommitError: COMMIT_UNKNOWN, SYNCHRONOUS_COMMIT_OFF.
    :raises LedgerError: if the ledger or a lock is not available.
    """
    settings = settings or CommitSettings(url)
    watch, outcome = LockWatch(url, settings.lock_timeout, armed=True), Outcome()
    try:
        with session_of_a_try(settings) as connection:
            began = begin_in_tx(connection, _APPLICATION, settings.lock_timeout)
            if not dry_run:
                refuse_lost_on_crash(began)
            with watch.looking(began.backend_pid, may_end=False):
                groups = _replay_in_tx(connection, choice, began, reason, outcome, dry_run=dry_run)
            if dry_run:
                connection.rollback()
                return groups
            # That the letters are gone is recorded already.
            with committing(connection, began, outcome):
                pass
            return groups
    except (psycopg.Error, sqlalchemy.exc.DBAPIError) as error:
        _raise_translated(error, outcome, watch)


def _replay_in_tx(
    connection: Connection,
    choice: Choice,
    began: TransactionState,
    reason: str | None,
    outcome: Outcome,
    *,
    dry_run: bool,
) -> list[Group]:
    with outcome.on_ledger():
        # As a commit does: first the writer's row, then the tables. So a running query and a replay take turns. A dry
        # run locks nothing of the ledger, so that the role needs no more than to write its rows.
        writer_ids = {} if dry_run else lock_writers_in_tx(connection, choice)
        letters = letters_in_tx(connection, choice, lock=not dry_run)
        refuse_begun_again_in_tx(connection, letters)
    groups = _read_in_tx(connection, letters)
    driver = driver_connection(connection)
    leave_in_tx(driver)
    done = _written_in_tx(driver, groups)
    if dry_run:
        return done
    replayed = [letter for group in done for letter in group.replayed]
    with as_it_began_in_tx(connection, began):
        if replayed:
            why = reason.strip() if reason else None
            with outcome.on_ledger():
                remove_letters_in_tx(connection, replayed, writer_ids, "replay-dead-letters", why)
    # What the commit finds in force is what the user's triggers have run under.
    leave_in_tx(driver)
    return done


def _written_in_tx(driver: psycopg.Connection, groups: Sequence[tuple[Group, LetterRows]]) -> list[Group]:
    """Write the rows that are not refused; constraints that COMMIT would check are checked here."""
    try:
        with driver.transaction():
            done = _groups_in_tx(driver, groups, checks=False)
            driver.execute("SET CONSTRAINTS ALL IMMEDIATE")
            return done
    except psycopg.OperationalError:
        raise
    except psycopg.Error:
        return _groups_in_tx(driver, groups, checks=True)


def _groups_in_tx(
    driver: psycopg.Connection, groups: Sequence[tuple[Group, LetterRows]], *, checks: bool
) -> list[Group]:
    done = []
    for group, given in (groups[number] for number in _in_order(driver, [group for group, _ in groups])):
        counts, kept = write_letters_in_tx(driver, partial(_write_in_tx, driver, group), given, checks=checks)
        done.append(replace(group, counts=None if counts is None else dict(counts), kept=tuple(kept)))
    return done


def _in_order(driver: psycopg.Connection, groups: Sequence[Group]) -> Sequence[int]:
    """The numbers of the groups, so that a row comes after the one of another table to which it may refer."""
    if len(groups) < 2:  # noqa: PLR2004 (one table or none)
        return range(len(groups))
    return parents_first(driver, ask_for_tables(driver, [group.destination.table for group in groups])())


def _write_in_tx(driver: psycopg.Connection, group: Group, rows: Rows) -> Mapping[str, int] | None:
    published = write_batch_in_tx(driver, replace(group.destination, of_letters=True), rows, rooms=EVERY_ROOM)
    # The table is locked now. Before that, its name may have come to mean another table since it was looked up.
    refuse_other_table(group.letters, group.oid, next(iter((published.targets or {}).values()), None))
    return published.counts


def _read_in_tx(connection: Connection, letters: Sequence[StoredLetter]) -> list[tuple[Group, LetterRows]]:
    """The letters by table and way of writing, each group with its rows; refused if any may not be replayed."""
    now = connection.execute(select(func.clock_timestamp())).scalar_one()
    driver = driver_connection(connection)
    letters = decoded_in_tx(connection, letters)
    found = []
    for recorded in map(_group, _by_table_and_way(letters)):
        refuse_unsafe(recorded.destination, recorded.letters, now)
        group = _for_the_same_table(driver, recorded)
        ids, changes = [letter.dead_letter_id for letter in group.letters], group.destination.changes
        deleted = changes.deleted if changes else None
        rows = mended_rows_in_tx(driver, ids, group.columns, deleted)
        numbers = {one: number for number, one in enumerate(ids)}
        ranked = ranked_in_tx(driver, ids, _that_order(group.destination, rows))
        order, ranks = [numbers[one] for one, _ in ranked], tuple(rank for _, rank in ranked)
        in_order = tuple(group.letters[number] for number in order)
        found.append((group, LetterRows(in_order, ranks, only(rows, order))))
    return found


def _that_order(destination: Destination, rows: Rows) -> list[EncodedColumn]:
    """The columns that say which change of a key is the later one."""
    changes = destination.changes
    # As the rows of a batch are ordered: a version that deletes a row and inserts it again has replaced it.
    deletes = changes.deleted if changes and changes.has_versions else None
    named = {column.name: column for column in rows.columns}
    return [named[name] for name in (destination.order_column, deletes) if name in named]


def _for_the_same_table(driver: psycopg.Connection, group: Group) -> Group:
    found = resolve_table(driver, group.destination.table)
    refuse_other_target(group.letters, group.destination.table, found.qualified_name)
    if group.destination.schema_evolution == "ignoreExtra":
        # A value in a column that is left out may be one that cannot be read.
        group = replace(group, columns=_written_columns(driver, group))
    if group.oid is None:
        return group
    now = found.oid
    refuse_other_table(group.letters, group.oid, now)
    return replace(group, oid=now)


def _written_columns(driver: psycopg.Connection, group: Group) -> tuple[EncodedColumn, ...]:
    """The columns that the table has, which is looked up between statements under our search_path."""
    leave_in_tx(driver)
    _, table = look_up_table(driver, group.destination.table)
    driver.execute(sql.SQL("SELECT {}").format(ENTER_COLUMNS))
    return group.columns if table is None else without_extra(table, group.columns, group.destination)


def _by_table_and_way(letters: Sequence[StoredLetter]) -> list[list[StoredLetter]]:
    groups: dict[tuple[str, str], list[StoredLetter]] = {}
    for letter in letters:
        groups.setdefault((letter.target, json.dumps(letter.destination, sort_keys=True)), []).append(letter)
    # In the order of their tables, so that two replays wait for each other and do not block each other.
    return [groups[key] for key in sorted(groups)]


def _group(letters: list[StoredLetter]) -> Group:
    try:
        destination, columns = recalled(letters[0].destination)
        oid = recorded_oid(letters[0].destination)
    except PgonceError as error:
        shown = ", ".join(str(letter.dead_letter_id) for letter in letters)
        first = letters[0]
        of = f"Dead letter {shown} ({first.code}, for {first.target}{_routes(letters)}): "
        raise type(error)(error.code, of + error.what, error.data, error.remedy) from None
    return Group(destination, columns, tuple(letters), oid)


def _routes(letters: Sequence[StoredLetter]) -> str:
    """The values without a listed table."""
    column = letters[0].column_name
    if letters[0].code != "ROUTE_UNKNOWN" or column is None:
        return ""
    rows = (json.loads(letter.row_data) for letter in letters)
    values = dict.fromkeys(ascii(row.get(column) if isinstance(row, dict) else row) for row in rows)
    return f"; {column} is {' or '.join(list(values)[:_MOST_NAMED])}"


def _raise_translated(error: Exception, outcome: Outcome, watch: LockWatch) -> NoReturn:
    cause = driver_error(error)
    if cause is None:
        raise error
    if outcome.unknown:
        raise UnknownOutcomeError(
            "COMMIT_UNKNOWN",
            "Postgres did not answer COMMIT of the replay.",
            "Either all rows are written and their letters are gone, or nothing was changed.",
            "Look with `pgonce dead-letters`: letters that are still there were not replayed.",
        ) from error
    if isinstance(cause, psycopg.errors.LockNotAvailable):
        raise LedgerError(
            "LOCKED",
            f"A lock that the replay needs did not become free within {watch.lock_timeout:g} seconds: {watch.holders}.",
            UNCHANGED,
            "Wait until the query's batch is done, or end that session, and give the command again.",
        ) from error
    if outcome.in_ledger:
        raise ledger_error(cause, "replaying dead letters") from error
    refused = target_error(cause, "the replay")
    if not isinstance(refused, TargetError):
        raise refused from error
    code = refused.code
    raise TargetError(
        code,
        refused.what,
        UNCHANGED,
        "Remove the cause, in row_data of the letter or in the table, and give the command again. With --id, only "
        f"the letters that you name are replayed. (`pgonce explain {code}`)",
    ) from error
