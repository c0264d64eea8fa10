"""
Exchange a table for one that another query has filled.

Runs in the command ``pgonce swap``. Invariant: names, sequences and the ledger change in one transaction, in which no
writer of either table is in the middle of a batch. Each writer goes on with the table that has its rows, so no row is
lost or doubled, even if one of the queries runs on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import psycopg
from psycopg import sql
from sqlalchemy import Connection, func, insert, select, update

from ..errors import UNCHANGED, RecoveryError
from ..ledger.session import reading, writing
from ..ledger.tables import interventions, tombstone_sets
from ..log_lines import in_command
from ..postgres.connect import connect, driver_connection
from ..postgres.lock_watch import LockWatch
from ..recovery.by_hand import refuse_no_reason
from ..recovery.fence import lock_writer_row
from .described_table import Table, describe_table, find_table, obstacles
from .exchange import (
    differences,
    exchange,
    exchange_keys,
    exchange_letters,
    follow_sink,
    keys_of_one_only,
    lock_job_keys,
    lock_letters,
    refused_keys,
)
from .feeding import (
    Feeding,
    NotComparableError,
    can_follow,
    feeding,
    follow,
    missing,
    refused_feeding,
    retired_ahead,
    retired_feeding,
)

LOCK_SECONDS = 10.0
"""How long it waits for each lock. Behind the last ones, those of the tables, readers wait too."""


@dataclass(frozen=True)
class Allowed:
    """
    What a person has said: ``caught_up`` if the new table has all that is needed, though nothing proves that;
    ``despite_differences`` if it may differ from the living one; ``back`` if the last swap is to be undone.
    """

    caught_up: bool = False
    despite_differences: bool = False
    back: bool = False


@dataclass(frozen=True)
class Swap:
    """
    Two tables that are exchanged, or would be, with their writers as they were before.

    ``retired`` are the writers of either that were retired and not forgotten. ``jobs_behind`` counts the batch jobs
    that were published into the living table, and not into the new one, once nothing else stands in the way.
    """

    living: Table
    new: Table
    of_living: tuple[Feeding, ...]
    of_new: tuple[Feeding, ...]
    retired: tuple[Feeding, ...] = ()
    jobs_behind: int = 0

    @property
    def feeders(self) -> tuple[Feeding, ...]:
        """The living writers of both tables."""
        return (*self.of_living, *self.of_new)

    @property
    def named_as(self) -> dict[int, Table]:
        """The table whose name each of them has after the swap, by oid."""
        return {self.living.oid: self.new, self.new.oid: self.living}


def swap_tables(
    table: str,
    new_table: str,
    url: str = "",
    *,
    reason: str,
    allowed: Allowed | None = None,
    dry_run: bool = False,
    lock_seconds: float = LOCK_SECONDS,
) -> Swap:
    """
    Let ``new_table`` take the place of ``table``, and the other way round.

    :raises ConfigurationError: NO_REASON.
    :raises RecoveryError: SWAP_NO_TABLE, SWAP_REFUSED, SWAP_BEHIND, SWAP_UNPROVEN, SWAP_DIFFERS, SWAP_AGAIN,
        SWAP_LOCKED, RECOVERY_RUNNING.
    """
    refuse_no_reason(reason)
    allowed = allowed or Allowed()
    oids = _found(url, table, new_table)
    if dry_run:
        with reading(url) as connection:
            return _judged(connection, _described(connection, oids), allowed)
    with writing(url, lock_seconds, isolation_level="READ COMMITTED") as connection:
        _lock_sinks(connection, url, _described(connection, oids), lock_seconds)
        _lock_keys_and_letters(connection, url, _described(connection, oids), lock_seconds)
        _lock_tables(connection, url, _described(connection, oids), lock_seconds)
        # What is judged now cannot change any more, and it may differ from what was locked before.
        swap = _judged(connection, _described(connection, oids, lock=True), allowed)
        with _as_owner(swap):
            for statement in exchange(swap.living, swap.new):
                driver_connection(connection).execute(statement)
        exchange_keys(connection, swap.living, swap.new)
        exchange_letters(connection, swap.living, swap.new)
        _rename_tombstones(connection, swap)
        _note(connection, swap, reason.strip(), back=allowed.back)
    return swap


def _found(url: str, *names: str) -> tuple[int, int]:
    """The oids of the tables, along the user's search_path."""
    with connect(url) as connection:
        living, new = (_found_in(connection, name) for name in names)
    if living == new:
        raise _refused([f"{names[0]} and {names[1]} are one table"])
    return living, new


def _found_in(connection: psycopg.Connection, name: str) -> int:
    try:
        oid = find_table(connection, name)
    except psycopg.Error:
        oid = None
    if oid is None:
        raise RecoveryError(
            "SWAP_NO_TABLE",
            f"There is no table {name!r}.",
            UNCHANGED,
            "Write table or schema.table, with odd names in double quotes.",
        )
    return oid


def _described(connection: Connection, oids: tuple[int, int], *, lock: bool = False) -> Swap:
    living, new = (describe_table(driver_connection(connection), oid) for oid in oids)
    if living is None or new is None:
        raise _moved("one of the tables is gone")
    fed = [tuple(feeding(connection, table, lock=lock)) for table in (living, new)]
    retired = (feeder for table in (living, new) for feeder in retired_feeding(connection, table))
    return Swap(living, new, fed[0], fed[1], tuple(retired))


def _lock_sinks(connection: Connection, url: str, swap: Swap, lock_seconds: float) -> None:
    """Wait until no writer is in the middle of a batch, and keep new ones out."""
    feeders = {feeder.writer.writer_id: feeder.writer for feeder in (*swap.feeders, *swap.retired)}
    names = {swap.living.qualified_name, swap.new.qualified_name, *(writer.sink_name for writer in feeders.values())}
    # As the first batch of a new query does: this lock first, and then those of known writers.
    for name in sorted(names):
        with _saying_who(connection, url, lock_seconds, f"the sink {name!r}, into which a new query writes"):
            connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(name, 0))))
    for writer_id, writer in sorted(feeders.items()):
        lock_writer_row(connection, writer_id, writer.sink_name, url)


def _lock_keys_and_letters(connection: Connection, url: str, swap: Swap, lock_seconds: float) -> None:
    """Wait for batch jobs and replays: they lock these first and then the tables, as is done here."""
    with _saying_who(connection, url, lock_seconds, "the keys of batch jobs"):
        lock_job_keys(connection)
    with _saying_who(connection, url, lock_seconds, "the dead letters of the tables"):
        lock_letters(connection, swap.living, swap.new)


def _lock_tables(connection: Connection, url: str, swap: Swap, lock_seconds: float) -> None:
    tables = sorted((swap.living, swap.new), key=lambda table: table.oid)
    names = sql.SQL(", ").join(sql.SQL("ONLY {}").format(table.identifier) for table in tables)
    with _as_owner(swap), _saying_who(connection, url, lock_seconds, "the tables"):
        driver_connection(connection).execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(names))


@contextmanager
def _as_owner(swap: Swap) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        name, owner = swap.living.qualified_name, swap.living.owner
        raise _refused([f"this role is neither {owner}, the owner of {name}, nor a member of that role"]) from error


@contextmanager
def _saying_who(connection: Connection, url: str, lock_seconds: float, what: str) -> Iterator[None]:
    watch = LockWatch(url, lock_seconds, armed=True)
    pid = connection.execute(select(func.pg_backend_pid())).scalar_one()
    try:
        with watch.looking(pid, may_end=False):
            yield
    except Exception as error:
        cause = error if isinstance(error, psycopg.Error) else error.__cause__
        if not isinstance(cause, psycopg.errors.LockNotAvailable):
            raise
        raise RecoveryError(
            "SWAP_LOCKED",
            f"Other sessions have held locks on {what} for {lock_seconds:g} seconds; {watch.holders}.",
            UNCHANGED,
            "Wait until they are done, or end these sessions, and try again.",
        ) from error


def _judged(connection: Connection, swap: Swap, allowed: Allowed) -> Swap:
    """:raises RecoveryError: if rows, or those who use them, could be lost on the way."""
    driver = driver_connection(connection)
    reasons = [
        *obstacles(driver, swap.living, swap.new),
        *refused_feeding(connection, swap.of_living, swap.of_new, swap.named_as),
        *refused_keys(connection, swap.living, swap.new),
    ]
    if reasons:
        raise _refused(reasons)
    if _is_last_swap(swap) != allowed.back:
        _refuse_direction(swap, allowed)
    if not allowed.back:
        _refuse_behind(swap, allowed)
    found = differences(swap.living, swap.new)
    if found and not allowed.despite_differences:
        raise RecoveryError(
            "SWAP_DIFFERS",
            f"{swap.new.qualified_name} is not like {swap.living.qualified_name}: {'; '.join(found)}. Queries that "
            "read or write the living table now may fail after the swap, or read what they may not read now.",
            UNCHANGED,
            "Run these statements, and alter what else differs. If this is meant, give --despite-differences.",
        )
    return replace(swap, jobs_behind=keys_of_one_only(connection, swap.living, swap.new))


def _is_last_swap(swap: Swap) -> bool:
    """Whether these two were exchanged with each other last, and none of their writers has published anything since."""
    return all(feeder.writer.swapped_from and feeder.exchanged == set(swap.named_as) for feeder in swap.feeders)


def _refuse_direction(swap: Swap, allowed: Allowed) -> NoReturn:
    names = f"{swap.living.qualified_name} and {swap.new.qualified_name}"
    if allowed.back:
        since = [feeder.label for feeder in swap.feeders if not feeder.writer.swapped_from]
        raise RecoveryError(
            "SWAP_AGAIN",
            f"--back was given, but {names} were not exchanged with each other last, or there are batches since"
            f"{': ' * bool(since)}{', '.join(since)}.",
            UNCHANGED,
            "Leave --back out: then the table that is to come back must have caught up.",
        )
    raise RecoveryError(
        "SWAP_AGAIN",
        f"{names} have been exchanged already, and no query has published anything since.",
        UNCHANGED,
        "If that is to be undone, give --back.",
    )


def _refuse_behind(swap: Swap, allowed: Allowed) -> None:
    retired = [feeder for feeder in swap.retired if feeder.oid == swap.living.oid]
    try:
        living = [feeder.reach for feeder in (*swap.of_living, *retired)]
        behind = missing(living, [feeder.reach for feeder in swap.of_new])
    except NotComparableError as why:
        if allowed.caught_up:
            return
        raise RecoveryError(
            "SWAP_UNPROVEN",
            f"Nothing proves that {swap.new.qualified_name} has caught up with {swap.living.qualified_name}: {why}.",
            UNCHANGED,
            "Compare the tables yourself. If the new one has all rows that are needed, give --caught-up.",
        ) from None
    if behind:
        raise RecoveryError(
            "SWAP_BEHIND",
            f"{swap.new.qualified_name} has not caught up with {swap.living.qualified_name}: {'; '.join(behind)}.",
            UNCHANGED,
            "Let the query that fills it go on; if the other one runs ahead all the time, stop that one first."
            + "".join(
                f" The rows of {feeder.label}, which was retired, count as well: if the new table has those that are "
                f"needed, forget that query with `pgonce forget {in_command(feeder.writer.query_id, 'QUERY')} --sink "
                f"{in_command(feeder.writer.sink_name, 'SINK')} --reason ... --yes`."
                for feeder in retired_ahead(retired, swap.of_new)
            ),
        )


def _rename_tombstones(connection: Connection, swap: Swap) -> None:
    """Deletes are remembered by the oid of a table. Its name is what they are found by where a dump is restored."""
    for oid, now in swap.named_as.items():
        sets = update(tombstone_sets).where(tombstone_sets.c.target == oid)
        connection.execute(sets.values(target_name=now.qualified_name))


def _note(connection: Connection, swap: Swap, reason: str, *, back: bool) -> None:
    followed = (feeder for feeder in swap.retired if can_follow(connection, feeder, swap.named_as))
    for feeder in (*swap.feeders, *followed):
        writer = feeder.writer
        sink = follow(connection, feeder, swap.named_as)
        follow_sink(connection, writer.query_id, writer.sink_name, sink)
        details: dict[str, Any] = {
            "exchanged": sorted(swap.named_as),
            "back": back,
            "sink": sink,
            "was": writer.sink_name,
            "table": swap.named_as[feeder.oid].qualified_name,
            "oid": feeder.oid,
        }
        row = {"writer_id": writer.writer_id, "kind": "swap", "batch_id": writer.last_batch_id, "details": details}
        connection.execute(insert(interventions).values(**row, reason=reason))


def _refused(reasons: Sequence[str]) -> RecoveryError:
    return RecoveryError(
        "SWAP_REFUSED",
        f"The tables cannot be exchanged: {'; '.join(reasons)}.",
        UNCHANGED,
        "What depends on a table stays with it when its name changes. Remove it before the swap, and create it "
        "again for the other table afterwards; do both in one transaction if readers always need it.",
    )


def _moved(what: str) -> RecoveryError:
    return RecoveryError(
        "SWAP_REFUSED", f"{what.capitalize()}.", UNCHANGED, "Check the tables, and give the command again."
    )
