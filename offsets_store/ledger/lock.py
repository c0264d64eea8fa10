"""
Lock a writer and read what the ledger says of it, inside the transaction that publishes a batch.

Runs in the commit, right after the begin. Invariant: all that is read of a writer is read under the lock on its row.
What a person has accepted counts for one batch of one writer, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    LABEL_STYLE_TABLENAME_PLUS_COL,
    ColumnElement,
    Connection,
    FromClause,
    and_,
    bindparam,
    func,
    literal,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql

from ..offsets import Offsets
from ..postgres.connect import driver_connection
from ..postgres.one_trip import Asked, ask
from ..postgres.text import QUALIFIED_NAME
from ..verdict.facts import Batch, Ledger, PlannedBatch, rivals_of
from .compiled import Compiled, send_once
from .migrations import refuse_too_new
from .tables import LEAST_READER, batches, interventions, positions, replays, runs, writers
from .writers import (
    RECORDED,
    as_writer,
    joined_record,
    neighbours_in_tx,
    take_positions_in_tx,
    with_positions,
)


def is_open(writer_id: int | ColumnElement[int]) -> ColumnElement[bool]:
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


def close_acceptances_in_tx(connection: Connection, writer_id: int, *, needed: bool) -> None:
    """
    Mark what was accepted as used: a batch is published, whether it ``needed`` that or not, which is noted.

    A later batch too, because it was accepted for a ledger that stood where it does not stand any more.
    """
    details = func.coalesce(interventions.c.details, literal({}, postgresql.JSONB)).op("||")
    noted = details(literal({"needed": needed}, postgresql.JSONB))
    used = update(interventions).where(is_open(writer_id)).values(used_at=func.clock_timestamp(), details=noted)
    send_once(connection, used)


@dataclass(frozen=True)
class LockedWriter:
    """
    The writer's key, its generation, and what the ledger says of it and of the batch at hand.

    ``written_as`` is the digest of how the last batch was written.
    """

    writer_id: int
    generation: int
    ledger: Ledger
    has_acceptances: bool = False
    written_as: str | None = None


@dataclass(frozen=True)
class AskedWriter:
    """The row of a writer, which is locked once it is there, and what the ledger has about a batch."""

    row: Asked
    facts: Asked


def ask_for_writer(connection: Connection, batch: PlannedBatch, sink_name: str | None) -> AskedWriter:
    """
    Ask within a round trip for what :func:`lock_writer_in_tx` needs, if the writer is known already.

    Two statements: one that waits for a lock has an older snapshot, and might not see the newest records.

    :param sink_name: None if it is the name of the table whose oid ``pgonce.target`` has.
    """
    identity = {"query": batch.query_id, "sink": sink_name}
    driver = driver_connection(connection)
    return AskedWriter(ask(driver, _LOCK, identity), ask(driver, _FACTS, {**identity, **_asked_about(batch)}))


def lock_writer_in_tx(
    connection: Connection, batch: Batch, replaces: str | None, asked: AskedWriter | None = None
) -> LockedWriter:
    """
    Lock the writer's row, which is created if it is new, and read what the verdict needs.

    A new row has no ``last_batch_id``. It disappears again if the batch is refused and the transaction rolled back.

    :param replaces: the id of the query whose place a new one takes.
    :param asked: what was asked for the same batch.
    :raises LedgerError: PGONCE_TOO_OLD.
    """
    driver, identity = driver_connection(connection), _identity(batch)
    row = asked.row.row() if asked else None
    if asked is None or row is None or row["sink_name"] != batch.sink_name:
        asked = None
        row = ask(driver, _LOCK, identity).row()
    if row is None:
        # INSERT, never SELECT and then INSERT: two drivers could both read "absent". The key makes the second one wait.
        connection.execute(_CREATE, {**identity, "guarantee": batch.guarantee})
        row = ask(driver, _LOCK, identity).one_row()
    # Another job may have upgraded the ledger since this process first looked at it.
    refuse_too_new(row["least_reader"])
    if row["last_batch_id"] is None:
        one_first_contact_in_tx(connection, batch)
        if replaces is not None:
            # The old query may still run. It must not publish between the reading of its end and its replacement.
            replaced = ask(driver, _LOCK, {"query": replaces, "sink": batch.sink_name}).row()
            if replaced is not None:
                take_positions_in_tx(connection, replaced["writer_id"], batch.run_id)
        ledger = of_unknown_in_tx(connection, batch, replaces)
        return LockedWriter(row["writer_id"], row["generation"], ledger)
    facts = asked.facts.row() if asked else None
    # While the lock was waited for, the table may have got a name under which the query has another writer.
    if facts is None or facts["of_writer"] != row["writer_id"]:
        facts = ask(driver, _FACTS, {**identity, **_asked_about(batch)}).one_row()
    # Before the batch takes the writer over, and not after: a task might write in between. None begins to, because its
    # first position would wait for the lock on the writer.
    taken = take_positions_in_tx(connection, row["writer_id"], batch.run_id) if facts["has_positions"] else None
    ledger = _ledger(row, batch, facts, taken)
    return LockedWriter(row["writer_id"], row["generation"], ledger, facts["has_acceptances"], row["written_as_digest"])


def unknown_writer_in_tx(connection: Connection, batch: Batch, replaces: str | None) -> Ledger | None:
    """
    What the ledger says of a query that it does not know yet, read without a lock; None if it knows the query.

    It proves nothing for the commit, which reads it again under the lock.
    """
    last = select(writers.c.last_batch_id).where(_IS_IT)
    if connection.execute(last, _identity(batch)).scalar_one_or_none() is not None:
        return None
    return of_unknown_in_tx(connection, batch, replaces)


def one_first_contact_in_tx(connection: Connection, batch: Batch) -> None:
    """
    Wait until no other new query is in its first batch into this sink, or into one of its tables.

    Without these locks, two that start together would not meet as rivals. The next statement sees who was waited for.
    """
    connection.execute(_ONE_FIRST_CONTACT, {"names": list(batch.places), "oids": batch.table_oids})


def of_unknown_in_tx(connection: Connection, batch: Batch, replaces: str | None) -> Ledger:
    """What the ledger says of a query that has published nothing for this sink: who feeds it, or its tables."""
    return Ledger(rivals=rivals_of(batch, neighbours_in_tx(connection, batch, replaces), replaces))


def _identity(batch: Batch) -> dict[str, str]:
    return {"query": batch.query_id, "sink": batch.sink_name}


# The record of how a batch was written is long, and only commands read it.
_READ: list[Any] = [
    *(column for column in writers.c if column is not writers.c.written_as),
    writers.c.written_as["digest"].astext.label("written_as_digest"),
]
# Without a name, the sink has that of the table that this transaction has looked for.
_TARGET: ColumnElement[str] = literal_column(
    f"(SELECT {QUALIFIED_NAME} FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE c.oid = CAST(nullif(current_setting('pgonce.target', true), '') AS oid))"
)
_IS_IT = and_(
    writers.c.query_id == bindparam("query"),
    writers.c.sink_name == func.coalesce(bindparam("sink", type_=writers.c.sink_name.type), _TARGET),
)
_LOCK = Compiled(select(*_READ, LEAST_READER).where(_IS_IT).with_for_update(of=writers))
# The keys of the locks that let new writers of a sink, or of a table, in one by one; in one order for all. A partition
# tree has a key of its own, because who feeds a table also feeds its partitions, and the table above it.
_ONE_FIRST_CONTACT = text("""
SELECT pg_advisory_xact_lock(k.key) FROM (
    SELECT hashtextextended(p.name, 0) AS key FROM (
        SELECT unnest(CAST(:names AS text[])) UNION
        SELECT concat('pgonce partitions of ', CAST(pg_partition_root(t.oid) AS oid))
        FROM unnest(CAST(:oids AS oid[])) AS t(oid) WHERE pg_partition_root(t.oid) IS NOT NULL
    ) AS p(name) ORDER BY 1
) AS k
""")
_CREATE = (
    postgresql.insert(writers)
    .values(query_id=bindparam("query"), sink_name=bindparam("sink"), guarantee=bindparam("guarantee"))
    .on_conflict_do_nothing(index_elements=["query_id", "sink_name"])
)

_BATCH = bindparam("batch", type_=batches.c.batch_id.type)
# It is usually the last batch, whose long text need not be sent twice.
_PREVIOUS = func.nullif(_BATCH - 1, writers.c.last_batch_id)
_same_id = batches.alias("same_id")
_last = batches.alias("last")
_previous = batches.alias("previous")


def _record_of(record: FromClause, batch_id: ColumnElement[int]) -> ColumnElement[bool]:
    return and_(
        record.c.writer_id == writers.c.writer_id,
        record.c.generation == writers.c.generation,
        record.c.batch_id == batch_id,
    )


_FACTS = Compiled(
    select(
        *(record.c[name] for record in (_same_id, _last, _previous) for name in RECORDED),
        writers.c.writer_id.label("of_writer"),
        select(literal(1))
        .where(runs.c.writer_id == writers.c.writer_id, runs.c.run_id == bindparam("run"))
        .exists()
        .label("was_owner"),
        select(literal(1)).where(is_open(writers.c.writer_id)).exists().label("has_acceptances"),
        select(literal(1)).where(positions.c.writer_id == writers.c.writer_id).exists().label("has_positions"),
        select(replays.c.attempt)
        .where(
            replays.c.writer_id == writers.c.writer_id,
            replays.c.generation == writers.c.generation,
            replays.c.batch_id == _BATCH,
            replays.c.run_id == bindparam("run"),
        )
        .scalar_subquery()
        .label("skipped_by"),
    )
    .select_from(
        writers.outerjoin(_same_id, _record_of(_same_id, _BATCH))
        .outerjoin(_last, _record_of(_last, writers.c.last_batch_id))
        .outerjoin(_previous, _record_of(_previous, _PREVIOUS))
    )
    .where(_IS_IT)
    .set_label_style(LABEL_STYLE_TABLENAME_PLUS_COL)
)


def _asked_about(batch: PlannedBatch) -> dict[str, Any]:
    return {"batch": batch.batch_id, "run": batch.run_id}


def _ledger(row: Mapping[str, Any], batch: Batch, facts: Mapping[str, Any], taken: Offsets | None) -> Ledger:
    last = with_positions(joined_record(facts, "last_"), taken)
    follows_last = batch.batch_id - 1 == row["last_batch_id"]
    return Ledger(
        writer=as_writer(row, last),
        same_id=joined_record(facts, "same_id_"),
        previous=last if follows_last else joined_record(facts, "previous_"),
        was_owner=facts["was_owner"],
        skipped_by=facts["skipped_by"],
    )
