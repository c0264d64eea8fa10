"""
Lock a writer and read what the ledger says of it, inside the transaction that publishes a batch.

Runs in the commit, right after the begin. Invariant: all that is read of a writer is read under the lock on its row.
What a person has accepted counts for one batch of one writer, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    FromClause,
    RowMapping,
    and_,
    bindparam,
    func,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql

from ..verdict.facts import Batch, Ledger, Recorded, rivals_of
from .migrations import refuse_too_new
from .tables import LEAST_READER, batches, interventions, replays, runs, writers
from .writers import as_recorded, as_writer, neighbours_in_tx, replaced_query_in_tx


def is_open(writer_id: int | BindParameter[int]) -> ColumnElement[bool]:
    """The condition for the acceptances of a writer that have not been used yet."""
    return and_(
        interventions.c.writer_id == writer_id,
        interventions.c.kind == "accept",
        interventions.c.used_at.is_(None),
    )


def is_accepted_in_tx(connection: Connection, writer_id: int, batch_id: int) -> bool:
    """Whether a person has accepted this batch of this writer, and that has not been used yet."""
    standing = select(literal(1)).where(is_open(writer_id), interventions.c.batch_id == batch_id)
    return connection.execute(standing).first() is not None


def close_acceptances_in_tx(connection: Connection, writer_id: int, batch_id: int) -> None:
    """Mark what was accepted up to this batch as used: the batch is published, whether it needed that or not."""
    up_to_this = and_(is_open(writer_id), interventions.c.batch_id <= batch_id)
    connection.execute(update(interventions).where(up_to_this).values(used_at=func.clock_timestamp()))


PLACES_IN_ORDER = """
(SELECT pg_catalog.hashtextextended(p.name, 0) AS key
 FROM pg_catalog.unnest(CAST({} AS pg_catalog.text[])) AS p(name) ORDER BY 1) AS k
"""
"""The keys of the locks that let new writers of a sink, or of a table, in one by one; in one order for all."""


@dataclass(frozen=True)
class LockedWriter:
    """
    The writer's key, its generation, and what the ledger says of it and of the batch at hand.

    ``written_as`` is the digest of how the last batch was written, and ``replaces`` the id of the query that a new
    writer replaces, even if the user gave its name.
    """

    writer_id: int
    generation: int
    ledger: Ledger
    has_acceptances: bool = False
    written_as: str | None = None
    replaces: str | None = None


class SnapshotTooOldError(Exception):
    """
    The transaction is repeatable read or serializable, and does not see rivals that were recorded since it began.

    The remedy is :func:`~pgonce.offsets_store.commit.one_transaction.begin_again_in_tx`.
    """


def lock_writer_in_tx(
    connection: Connection, batch: Batch, replaces: str | None, *, start_over: bool = False, sees_rivals: bool = False
) -> LockedWriter:
    """
    Lock the writer's row, which is created if it is new, and read what the verdict needs.

    A new row has no ``last_batch_id``. It disappears again if the batch is refused and the transaction rolled back.

    :param replaces: the id of a query, the beginning of it, or the query's name, as the user gave it.
    :param start_over: whether the rows of the query that is replaced are to go.
    :param sees_rivals: whether the transaction was begun by
        :func:`~pgonce.offsets_store.commit.one_transaction.begin_again_in_tx`.
    :raises LedgerError: LEDGER_TOO_NEW.
    :raises OffsetsError: QUERY_AMBIGUOUS, if several queries can be meant by ``replaces``.
    :raises SnapshotTooOldError: if rivals must be looked for, and the transaction would not see them.
    """
    row = connection.execute(_LOCK, _identity(batch)).mappings().one_or_none()
    if row is None:
        # INSERT, never SELECT and then INSERT: two drivers could both read "absent". The key makes the second one wait.
        connection.execute(_CREATE, {**_identity(batch), "guarantee": batch.guarantee})
        row = connection.execute(_LOCK, _identity(batch)).mappings().one()
    # Another job may have upgraded the ledger since this process first looked at it.
    refuse_too_new(row["least_reader"])
    if row["last_batch_id"] is None:
        # Without these locks, two new queries of one sink or table that start together would not meet as rivals.
        isolation = connection.execute(_ONE_FIRST_CONTACT, {"places": list(batch.places)}).all()[0].isolation
        # Under read committed, a statement sees what was committed before it. Under a snapshot, it does not see a rival
        # that was recorded since, though it has waited for it. (This has happened: both queries fed the sink.)
        if isolation != "read committed" and not sees_rivals:
            raise SnapshotTooOldError
        if replaces is not None:
            replaces = replaced_query_in_tx(connection, batch, replaces)
            # The old query may still run. It must not publish between the reading of its end and its replacement.
            connection.execute(_LOCK, {"query": replaces, "sink": batch.sink_name})
        ledger = _of_unknown(connection, batch, replaces, start_over=start_over)
        return LockedWriter(row["writer_id"], row["generation"], ledger, replaces=replaces)
    facts = _facts_in_tx(connection, row, batch)
    ledger = _ledger(row, batch, facts)
    return LockedWriter(row["writer_id"], row["generation"], ledger, facts["has_acceptances"], row["written_as_digest"])


def unknown_writer_in_tx(
    connection: Connection, batch: Batch, replaces: str | None, *, start_over: bool = False
) -> Ledger | None:
    """
    What the ledger says of a query that it does not know yet, read without a lock; None if it knows the query.

    It proves nothing for the commit, which reads it again under the lock.
    """
    if connection.execute(_LAST, _identity(batch)).scalar_one_or_none() is not None:
        return None
    if replaces is not None:
        replaces = replaced_query_in_tx(connection, batch, replaces)
    return _of_unknown(connection, batch, replaces, start_over=start_over)


def _of_unknown(connection: Connection, batch: Batch, replaces: str | None, *, start_over: bool) -> Ledger:
    rivals = rivals_of(batch, neighbours_in_tx(connection, batch, replaces), replaces, start_over=start_over)
    swapped_to = connection.execute(_SWAPPED_TO, _identity(batch)).scalar_one_or_none()
    return Ledger(rivals=rivals, swapped_to=swapped_to)


def _identity(batch: Batch) -> dict[str, str]:
    return {"query": batch.query_id, "sink": batch.sink_name}


# The record of how a batch was written is long, and only commands read it.
_READ: list[Any] = [
    *(column for column in writers.c if column is not writers.c.written_as),
    writers.c.written_as["digest"].astext.label("written_as_digest"),
]
_LOCK = (
    select(*_READ, LEAST_READER)
    .where(writers.c.query_id == bindparam("query"), writers.c.sink_name == bindparam("sink"))
    .with_for_update()
)
_LAST = select(writers.c.last_batch_id).where(
    writers.c.query_id == bindparam("query"), writers.c.sink_name == bindparam("sink")
)
_SWAPPED_TO = (
    select(writers.c.sink_name)
    .where(writers.c.query_id == bindparam("query"), writers.c.swapped_from == bindparam("sink"))
    .where(writers.c.sink_name != bindparam("sink"))
    .limit(1)
)
_ONE_FIRST_CONTACT = text(
    "SELECT pg_advisory_xact_lock(k.key), current_setting('transaction_isolation') AS isolation FROM "
    + PLACES_IN_ORDER.format(":places")
)
_CREATE = (
    postgresql.insert(writers)
    .values(query_id=bindparam("query"), sink_name=bindparam("sink"), guarantee=bindparam("guarantee"))
    .on_conflict_do_nothing()
)

_same_id = batches.alias("same_id")
_last = batches.alias("last")
_previous = batches.alias("previous")


def _record_of(record: FromClause, batch: str) -> ColumnElement[bool]:
    return and_(
        record.c.writer_id == bindparam("writer"),
        record.c.generation == bindparam("generation"),
        record.c.batch_id == bindparam(batch),
    )


_FACTS = (
    select(
        _same_id,
        _last,
        _previous,
        select(literal(1))
        .where(runs.c.writer_id == bindparam("writer"), runs.c.run_id == bindparam("run"))
        .exists()
        .label("was_owner"),
        select(literal(1)).where(is_open(bindparam("writer"))).exists().label("has_acceptances"),
        select(replays.c.attempt)
        .where(
            replays.c.writer_id == bindparam("writer"),
            replays.c.generation == bindparam("generation"),
            replays.c.batch_id == bindparam("batch"),
            replays.c.run_id == bindparam("run"),
        )
        .scalar_subquery()
        .label("skipped_by"),
    )
    .select_from(
        select(literal(1).label("one"))
        .subquery()
        .outerjoin(_same_id, _record_of(_same_id, "batch"))
        .outerjoin(_last, _record_of(_last, "last_batch"))
        .outerjoin(_previous, _record_of(_previous, "previous_batch"))
    )
    .set_label_style(2)  # type: ignore[arg-type]
)


def _facts_in_tx(connection: Connection, row: RowMapping, batch: Batch) -> RowMapping:
    found = connection.execute(
        _FACTS,
        {
            "writer": row["writer_id"],
            "generation": row["generation"],
            "batch": batch.batch_id,
            "last_batch": row["last_batch_id"],
            # It is usually the last batch, whose long text need not be sent twice.
            "previous_batch": None if batch.previous_batch_id == row["last_batch_id"] else batch.previous_batch_id,
            "run": batch.run_id,
        },
    )
    return found.mappings().one()


def _ledger(row: RowMapping, batch: Batch, facts: RowMapping) -> Ledger:
    last = _recorded(facts, "last")
    follows_last = batch.previous_batch_id == row["last_batch_id"]
    return Ledger(
        writer=as_writer(row, last),
        same_id=_recorded(facts, "same_id"),
        previous=last if follows_last else _recorded(facts, "previous"),
        was_owner=facts["was_owner"],
        skipped_by=facts["skipped_by"],
    )


def _recorded(facts: RowMapping, alias: str) -> Recorded | None:
    return None if facts[f"{alias}_batch_id"] is None else as_recorded(facts, f"{alias}_")
