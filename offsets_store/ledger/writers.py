"""
Read the ledger's table ``writers``, and say who feeds a table.

Runs where the ledger is read, in a transaction that the caller owns and under our search_path. Invariant: a row is
read into :class:`~pgonce.offsets_store.verdict.facts.Writer` here and nowhere else, and a record of a batch into
:class:`~pgonce.offsets_store.verdict.facts.Recorded`.

``writers_in_tx(connection, IS_LIVING, writers.c.query_id == query_id)`` reads the living writers of a query,
``writers_in_tx(connection, IS_LIVING, feeds({"public.orders": oid}))`` those that feed a table, and
``records_in_tx(connection, writer, batches.c.batch_id >= 7)`` records of one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    RowMapping,
    Text,
    TextClause,
    and_,
    cast,
    func,
    literal,
    not_,
    or_,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from ..errors import UNCHANGED, LedgerError, RefusedBatch
from ..offsets import Offsets, furthest
from ..verdict.facts import Batch, Recorded, Writer
from ..verdict.reads import recorded_reads
from .feeders import FEEDS, REPLACES_ROWS
from .tables import batches, interventions, last_batches, replays, runs, writers, writers_and_last_batches

Condition = ColumnElement[bool] | TextClause


def _has_intervention(kind: str, *conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    of_writer = interventions.c.writer_id == writers.c.writer_id
    return select(literal(1)).where(of_writer, interventions.c.kind == kind, *conditions).exists()


HAS_PUBLISHED = writers.c.last_batch_id.is_not(None)
"""A first batch that is not committed yet leaves a row that counts for no other writer."""
IS_LIVING = and_(HAS_PUBLISHED, writers.c.replaced_by.is_(None), writers.c.retired_at.is_(None))
"""The writers that have published and may publish more."""
# The rows of one that was replaced are its successor's.
COUNTS_AS_FEEDER = and_(HAS_PUBLISHED, writers.c.replaced_by.is_(None), not_(_has_intervention("forget")))
"""The writers whose rows are still in their tables: the living ones, and those that were retired and not forgotten."""

RECORDED = (
    "batch_id",
    "run_id",
    "attempt",
    "start_offsets",
    "end_offsets",
    "offset_log",
    "positions",
    "topic_ids",
    "stateful",
)
"""The columns of ``batches`` that :func:`as_recorded` reads; no others, which an older ledger may lack."""
_NOT_READ = {"written_as", "sources"}
_COLUMNS = [column.name for column in writers.c if column.name not in _NOT_READ]
# The record of how a batch was written, and its entry of offsets/, are long and rarely needed.
_WRITERS = select(
    *(column for column in writers.c if column.name != "written_as"),
    *(last_batches.c[name].label(f"of_last_{name}") for name in RECORDED if name != "offset_log"),
    literal(None).label("of_last_offset_log"),
    func.pgonce.real_time_positions(writers.c.writer_id, type_=JSONB).label("of_tasks"),
).select_from(writers_and_last_batches)


def writers_in_tx(connection: Connection, *conditions: Condition) -> list[Writer]:
    """
    The writers that have published and meet all conditions, by sink and key, each with the record of its last batch.

    That record lacks the text of its entry of ``offsets/``; :func:`records_in_tx` reads it.
    """
    found = _WRITERS.where(HAS_PUBLISHED, *conditions).order_by(writers.c.sink_name, writers.c.writer_id)
    rows = connection.execute(found).mappings()
    return [as_writer(row, with_positions(joined_record(row, "of_last_"), row["of_tasks"])) for row in rows]


def take_positions_in_tx(connection: Connection, writer_id: int, run_id: str) -> Offsets | None:
    """
    How far the tasks of a writer have stored rows; those of other runs write nothing until this transaction ends.

    None if it has no tasks that write for themselves.

    :raises RefusedBatch: PARTITION_MIXED, if rows of a partition may be missing.
    """
    # With exactly the types that the functions have.
    writer, run = cast(writer_id, BigInteger), cast(run_id, Text)
    taken = func.pgonce.take_positions(writer, run, type_=JSONB)
    found, disputed = connection.execute(select(taken, func.pgonce.first_dispute(writer, type_=JSONB))).one()
    _refuse_disputed(disputed, writer_id)
    stored: Offsets | None = found
    return stored


def _refuse_disputed(found: Sequence[Any] | None, writer_id: int) -> None:
    """
    Refuse to go on from a partition of which rows may be missing.

    :param found: what ``pgonce.first_dispute`` returns: topic, partition, the first of these records, and the position.
    :raises RefusedBatch: PARTITION_MIXED.
    """
    if found is None:
        return
    topic, partition, disputed_from, position = found
    raise RefusedBatch.usual(
        "PARTITION_MIXED",
        f"In an earlier run, two tasks of one batch had rows of partition {partition} of topic {topic}: of records "
        f"{disputed_from} to {position - 1}, some may be missing in the table.",
        "Compare these records with the table, repair it by hand, and run UPDATE pgonce.positions SET disputed_from = "
        f"NULL WHERE writer_id = {writer_id} AND topic = '{topic}' AND partition = {partition}. Then start the query "
        "again, without the step that moves rows between tasks.",
    )


def with_positions(last: Recorded | None, of_tasks: Offsets | None) -> Recorded | None:
    """The record of a writer's last batch, with what its tasks have stored since."""
    return last if last is None or of_tasks is None else replace(last, positions=furthest(last.positions, of_tasks))


def records_in_tx(connection: Connection, writer: Writer, *conditions: ColumnElement[bool]) -> dict[int, Recorded]:
    """The records of a writer's generation that meet all conditions, by batch id."""
    found = select(*(batches.c[name] for name in RECORDED)).where(
        batches.c.writer_id == writer.writer_id, batches.c.generation == writer.generation, *conditions
    )
    return {row["batch_id"]: as_recorded(row) for row in connection.execute(found).mappings()}


def as_writer(row: Mapping[str, Any] | RowMapping, last: Recorded | None) -> Writer:
    """A row of ``writers``, with the record of its last batch; None if that is not kept or was not read."""
    values = checked(row)
    return Writer(**{name: values[name] for name in _COLUMNS}, reads=recorded_reads(values["sources"]), last=last)


def as_recorded(row: Mapping[str, Any] | RowMapping, prefix: str = "") -> Recorded:
    """A row of ``batches``; the names of its columns may begin with a ``prefix``."""
    values = checked({name: row[f"{prefix}{name}"] for name in RECORDED})
    start, end = values.pop("start_offsets"), values.pop("end_offsets")
    return Recorded(start=start, end=end, **values)


def joined_record(row: Mapping[str, Any] | RowMapping, prefix: str) -> Recorded | None:
    """As :func:`as_recorded`, for a record that an outer join may not have found."""
    return None if row[f"{prefix}batch_id"] is None else as_recorded(row, prefix)


# What pgonce writes as a JSON object, or not at all.
_OBJECTS = (
    "end_offsets",
    "start_offsets",
    "latest_offsets",
    "positions",
    "stored_positions",
    "topic_ids",
    "targets",
    "counts",
    "tables",
)


def checked(row: Mapping[str, Any] | RowMapping) -> dict[str, Any]:
    """
    The values of a row of the ledger.

    :raises LedgerError: LEDGER_MALFORMED, if JSON has another shape than pgonce gives it.
    """
    for name in _OBJECTS:
        if not isinstance(row.get(name), dict | None):
            keys = [f"{key} {row[key]!r}" for key in ("query_id", "sink_name", "batch_key", "batch_id") if row.get(key)]
            raise LedgerError(
                "LEDGER_MALFORMED",
                f"In the ledger, {name} of {', '.join(keys) or 'a row'} is not a JSON object, so pgonce did not "
                "write it.",
                UNCHANGED,
                "Find out what changed the row, and restore it from a backup.",
            )
    return dict(row)


def feeds(tables: Mapping[str, int | None], feeder: str = "pgonce.writers") -> TextClause:
    """
    The condition for the writers that feed one of these tables, under any sink name.

    A writer whose tables are not known before it writes to them is found once it has.

    :param tables: their qualified names (or the name of a sink), with their oids as far as they are known.
    :param feeder: ``pgonce.batch_jobs`` for the condition for batch jobs.
    """
    return _about(tables, FEEDS, feeder)


def _about(tables: Mapping[str, int | None], condition: str, feeder: str = "pgonce.writers") -> TextClause:
    names, oids = list(tables), [oid for oid in tables.values() if oid is not None]
    made = text(condition.format(feeder=feeder, names=":fed_names", oids=":fed_oids"))
    return made.bindparams(fed_names=names, fed_oids=oids)


def neighbours_in_tx(connection: Connection, batch: Batch, replaces: str | None) -> tuple[Writer, ...]:
    """
    The other queries that feed the batch's sink or tables, and the one to be replaced, even if it is no longer living.

    Sinks of the same query count as well, if they have this batch already and its run has neither written to them nor
    skipped anything there. A query may write one table by several sinks, and then each run does so. But a sink that has
    got another name would write its rows once more, also if it got it between two tries of one commit; and so would one
    whose table had the sink's name before it took the place of another table.

    :raises LedgerError: LEDGER_MALFORMED, because what such a query has read cannot be known, and the new query might
        write the same rows once more.
    """
    replaced = and_(writers.c.sink_name == batch.sink_name, writers.c.query_id == literal(replaces))
    # A sink's name alone says nothing of the tables whose rows are replaced.
    by_name = feeds(batch.tables if batch.replaces_all else {batch.sink_name: None, **batch.tables})
    others = and_(writers.c.query_id != batch.query_id, or_(and_(IS_LIVING, by_name), replaced))
    heard = (
        select(literal(1)).where(seen.c.writer_id == writers.c.writer_id, seen.c.run_id == batch.run_id).exists()
        for seen in (runs, replays)
    )
    is_batch = (batches.c.writer_id == writers.c.writer_id, batches.c.batch_id == batch.batch_id)
    earlier_try = select(literal(1)).where(*is_batch, batches.c.attempt == batch.attempt).exists()
    renamed = and_(
        writers.c.query_id == batch.query_id,
        writers.c.sink_name != batch.sink_name,
        writers.c.last_batch_id >= batch.batch_id,
        or_(
            and_(by_name, or_(not_(or_(*heard)), earlier_try)),
            _has_intervention("swap", interventions.c.details["was"].astext == batch.sink_name),
        ),
    )
    found = writers_in_tx(connection, or_(others, renamed))
    if not found or not batch.tables:
        return tuple(found)
    are_neighbours = writers.c.writer_id.in_([writer.writer_id for writer in found])
    asked = select(writers.c.writer_id).where(are_neighbours, _about(batch.tables, REPLACES_ROWS))
    replacing = set(connection.execute(asked).scalars())
    return tuple(replace(writer, replaces_all=writer.writer_id in replacing) for writer in found)


# Fewer characters of an id are probably something else that was mistyped.
LEAST_CHARACTERS = 4


def is_meant(given: str, query_id: str, query_name: str | None) -> bool:
    """Whether ``given`` is the query's id, the first four or more characters of the id, or the query's name."""
    begins = len(given) >= LEAST_CHARACTERS and query_id.startswith(given)
    return begins or given in (query_id, query_name)


def meant_by(given: str, query_id: ColumnElement[str], query_name: ColumnElement[str | None]) -> ColumnElement[bool]:
    """:func:`is_meant` as a condition in SQL."""
    begins = [func.starts_with(query_id, given)] if len(given) >= LEAST_CHARACTERS else []
    return or_(query_id == given, query_name == given, *begins)
