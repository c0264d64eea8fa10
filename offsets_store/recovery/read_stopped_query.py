"""
Read what is known of a stopped query, from its checkpoint and from the ledger.

Runs on the driver before a start, and in the command ``pgonce``. Invariant: it only reads. A file that cannot be
understood raises a CheckpointError; it is never left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, or_, select

from ..checkpoint.files import CheckpointFiles, open_location
from ..checkpoint.reader import Checkpoint, state_files
from ..errors import CheckpointError, LedgerError
from ..ledger.acceptances import is_open
from ..ledger.lock import recorded
from ..ledger.neighbours import IS_LIVING, NEIGHBOURS, neighbour
from ..ledger.session import reading
from ..ledger.tables import batches, interventions, writers
from ..status.read_stored import checked
from ..verdict.rivals import Neighbour
from .stateful_query import last_batch
from .stopped_query import CheckpointFacts, SideLog, SinkFacts

_CHECKSUM = re.compile(r"\.[0-9]+\.crc", re.ASCII)
_UNFINISHED = re.compile(r"\.{1,2}0\.[0-9a-f-]{36}\.tmp(\.crc)?", re.ASCII)


def read_checkpoint(files: CheckpointFiles) -> CheckpointFacts:
    """
    Everything that ``offsets/``, ``commits/`` and ``sources/`` say. Spark keeps a hundred entries of each.

    :raises CheckpointError: where a file cannot be read, or not be understood.
    """
    checkpoint = Checkpoint(files)
    planned, done = checkpoint.batch_ids()
    offsets = {number: checkpoint.find_offset_log(number) for number in planned}
    first = offsets.get(0)
    commits = {number: checkpoint.commit_log(number) for number in done}
    return CheckpointFacts(
        location=checkpoint.location,
        query_id=_query_id(checkpoint),
        offsets={number: entry for number, entry in offsets.items() if entry is not None},
        commits={number: entry for number, entry in commits.items() if entry is not None},
        checksums=frozenset(
            f"{folder}/{name}"
            for folder in ("offsets", "commits")
            for name in files.names(folder)
            if _CHECKSUM.fullmatch(name)
        ),
        side_logs={source_id: _side_log(files.names(f"sources/{source_id}")) for source_id in files.names("sources")},
        initial=checkpoint.initial_offsets(first.offsets if first else ()),
        is_stateful=checkpoint.is_stateful(),
        unfinished=frozenset(f"offsets/{name}" for name in files.names("offsets") if _UNFINISHED.fullmatch(name)),
    )


def with_state(files: CheckpointFiles, checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts]) -> CheckpointFacts:
    """The same with the files in ``state/``, if a plan may depend on them: they are in many folders."""
    if last_batch(checkpoint, sinks) is None or checkpoint.newest_commit is None:
        return checkpoint
    return replace(checkpoint, state_since=state_files(files, above=checkpoint.newest_commit + 1))


def _query_id(checkpoint: Checkpoint) -> str | None:
    try:
        return checkpoint.query_id()
    except CheckpointError as error:
        if error.code != "CHECKPOINT_NOT_FOUND":
            raise
        return None


def _side_log(names: Collection[str]) -> SideLog:
    numbers = [name.partition(".") for name in names]
    return SideLog(
        frozenset(int(number) for number, _, rest in numbers if number.isdecimal() and not rest),
        frozenset(int(number) for number, _, rest in numbers if number.isdecimal() and rest == "compact"),
    )


def known_sinks(url: str, checkpoint: CheckpointFacts) -> list[SinkFacts]:
    """
    The sinks of the checkpoint's query, as the ledger has them; none where there is no ledger yet.

    :raises LedgerError: where the ledger cannot be read.
    """
    if checkpoint.query_id is None:
        return []
    try:
        with reading(url) as connection:
            return read_sinks(connection, checkpoint.query_id, checkpoint.offsets.keys())
    except LedgerError as error:
        # Before the first batch, and after a continuous query, the checkpoint alone says what to do.
        if error.code == "NO_LEDGER" and (checkpoint.newest in (None, 0) or checkpoint.is_continuous):
            return []
        raise


def read_sinks(connection: Connection, query_id: str, batch_ids: Collection[int] = ()) -> list[SinkFacts]:
    """
    Every writer of a query that has published, in the order of sinks; replaced and retired ones too.

    :param batch_ids: the batches in its checkpoint, whose records are read besides those of the newest two.
    """
    found = connection.execute(
        select(writers)
        .where(writers.c.query_id == query_id, writers.c.last_batch_id.is_not(None))
        .order_by(writers.c.sink_name)
    )
    return [_sink(connection, checked(row), batch_ids) for row in found.mappings().all()]


def read_neighbours(connection: Connection, sink_name: str | None = None) -> dict[str, tuple[Neighbour, ...]]:
    """
    The living queries of every sink, or of one, by the sink's name.

    A sink that is called like its table is also fed by those that write to this table under another name.
    """
    found: dict[str, tuple[Neighbour, ...]] = {}
    for row in connection.execute(NEIGHBOURS.where(IS_LIVING).order_by(writers.c.sink_name, writers.c.writer_id)):
        for name in {row.sink_name, *(row.targets or {})}:
            if sink_name in (None, name):
                known = neighbour(row)
                place = _as_opened(known.checkpoint_location)
                found[name] = (*found.get(name, ()), replace(known, checkpoint_location=place))
    return found


def _as_opened(location: str | None) -> str | None:
    """The location as an opened checkpoint shows it; the ledger may hold another form of the same."""
    try:
        return open_location(location).shown if location else None
    except CheckpointError:
        return location


def _sink(connection: Connection, writer: Mapping[str, Any], batch_ids: Collection[int]) -> SinkFacts:
    last = writer["last_batch_id"]
    of_writer = batches.c.writer_id == writer["writer_id"]
    found = connection.execute(
        select(batches).where(
            of_writer,
            batches.c.generation == writer["generation"],
            or_(batches.c.batch_id.in_(list(batch_ids)), batches.c.batch_id >= last - 1),
        )
    )
    records = {record["batch_id"]: checked(record) for record in found.mappings()}
    accepted = connection.execute(select(interventions.c.batch_id).where(is_open(writer["writer_id"]))).scalars()
    newest = records.get(last)
    # A batch that is judged by its id is recorded as a stateful query's, because nobody has looked.
    has_looked = writer["guarantee"] != "ids"
    return SinkFacts(
        writer_id=writer["writer_id"],
        sink_name=writer["sink_name"],
        query_name=writer["query_name"],
        run_id=writer["run_id"],
        generation=writer["generation"],
        last_batch_id=last,
        end_offsets=writer["end_offsets"] or (newest["end_offsets"] if newest else None),
        guarantee=writer["guarantee"],
        replaced_by=writer["replaced_by"],
        retired_at=writer["retired_at"],
        records={batch_id: recorded(record) for batch_id, record in records.items()},
        accepted=frozenset(batch_id for batch_id in accepted if batch_id is not None),
        stateful=newest["stateful"] if newest and has_looked else None,
    )
