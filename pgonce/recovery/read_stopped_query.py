"""
Read what is known of a stopped query, from its checkpoint and from the ledger.

Runs on the driver before a start, and in the command ``pgonce``. Invariant: it only reads. An entry that cannot be
understood is named as damaged, and another file raises a CheckpointError; none is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, replace
from typing import TypeVar

from sqlalchemy import Connection, or_, select

from pgonce.offsets_store.checkpoint.files import ArrowFiles, CheckpointFiles, LocalFiles, open_location, open_recorded
from pgonce.offsets_store.checkpoint.log_entries import MalformedFileError
from pgonce.offsets_store.checkpoint.reader import REAL_TIME_RUNS, Checkpoint
from pgonce.offsets_store.errors import NOTHING_CHANGED, CheckpointError, NoCheckpointError, NoLedgerError
from pgonce.offsets_store.ledger.lock import is_open
from pgonce.offsets_store.ledger.session import reading
from pgonce.offsets_store.ledger.tables import batches, interventions, writers
from pgonce.offsets_store.ledger.writers import records_in_tx, writers_in_tx
from pgonce.offsets_store.offsets import furthest
from pgonce.offsets_store.status.read_stored import task_positions, writers_of
from pgonce.offsets_store.status.stored import StoredWriter
from pgonce.offsets_store.verdict.facts import Writer

from .state_files import state_files
from .stateful_query import lacking_batch, last_batch
from .stopped_query import CheckpointFacts, SideLog, SinkFacts

_Entry = TypeVar("_Entry")

_CHECKSUM = re.compile(r"\.[0-9]+\.crc", re.ASCII)
_UNFINISHED = re.compile(r"\.{1,2}0\.[0-9a-f-]{36}\.tmp(\.crc)?", re.ASCII)


def read_checkpoint(files: CheckpointFiles) -> CheckpointFacts:
    """
    Everything that ``offsets/``, ``commits/`` and ``sources/`` say. Spark keeps a hundred entries of each.

    :raises CheckpointError: if a file cannot be read; or not be understood, except for entries.
    """
    checkpoint = Checkpoint(files)
    planned, done = checkpoint.batch_ids()
    offsets, bad_offsets = _entries("offsets", planned, checkpoint.find_offset_log)
    commits, bad_commits = _entries("commits", done, checkpoint.commit_log)
    return CheckpointFacts(
        location=checkpoint.location,
        query_id=_query_id(checkpoint),
        offsets=offsets,
        commits=commits,
        checksums=frozenset(
            f"{folder}/{name}"
            for folder in ("offsets", "commits")
            for name in files.names(folder)
            if _CHECKSUM.fullmatch(name)
        ),
        side_logs={source_id: _side_log(files.names(f"sources/{source_id}")) for source_id in files.names("sources")},
        initial=checkpoint.initial_offsets(offsets.get(0)),
        is_stateful=checkpoint.is_stateful(),
        unfinished=frozenset(f"offsets/{name}" for name in files.names("offsets") if _UNFINISHED.fullmatch(name)),
        has_real_time_runs=bool(files.names(REAL_TIME_RUNS)),
        damaged=bad_offsets | bad_commits,
    )


def own_files(query_id: str, recorded: str | None, given: str | None = None) -> LocalFiles | ArrowFiles:
    """
    The checkpoint of this query where a person says that it is, or else where the ledger has it.

    :raises CheckpointError: CHECKPOINT_NOT_FOUND, if it is not there, or only Spark can read it.
    """
    what = f"The ledger does not know where the checkpoint of query {query_id} is."
    if given is not None or recorded is not None:
        try:
            files = open_recorded(recorded) if given is None else open_location(given)
            if Checkpoint(files).query_id() == query_id:
                return files
            what = f"On this host, {files.shown} does not have the checkpoint of query {query_id}."
        except CheckpointError as error:
            what = error.what
    raise NoCheckpointError(
        "CHECKPOINT_NOT_FOUND",
        what,
        NOTHING_CHANGED,
        "Type the place of the checkpoint, or a copy that this host can read: `pgonce doctor CHECKPOINT`, or `pgonce "
        "accept` with --checkpoint. If it was deleted: page `recovering` of the documentation, A lost checkpoint.",
    )


def _entries(
    folder: str, numbers: Sequence[int], read: Callable[[int], _Entry | None]
) -> tuple[dict[int, _Entry], frozenset[str]]:
    """The entries of a folder that can be read, and the names of the others."""
    found, damaged = {}, set()
    for number in numbers:
        try:
            entry = read(number)
        except MalformedFileError:
            damaged.add(f"{folder}/{number}")
            continue
        if entry is not None:
            found[number] = entry
    return found, frozenset(damaged)


def with_state(files: CheckpointFiles, checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts]) -> CheckpointFacts:
    """The same with the files in ``state/``, if a plan may depend on them: they are in many folders."""
    living = [sink for sink in sinks if sink.is_living]
    may_depend = checkpoint.is_stateful and (bool(checkpoint.damaged) or lacking_batch(checkpoint, living) is not None)
    if checkpoint.newest_commit is None or not (may_depend or last_batch(checkpoint, living) is not None):
        return checkpoint
    return replace(checkpoint, state_since=state_files(files, above=checkpoint.newest_commit + 1))


def _query_id(checkpoint: Checkpoint) -> str | None:
    try:
        return checkpoint.query_id()
    except NoCheckpointError:
        return None


def _side_log(names: Collection[str]) -> SideLog:
    numbers = [name.partition(".") for name in names]
    return SideLog(
        frozenset(int(number) for number, _, rest in numbers if number.isdecimal() and not rest),
        frozenset(int(number) for number, _, rest in numbers if number.isdecimal() and rest == "compact"),
    )


def known_sinks(url: str, checkpoint: CheckpointFacts) -> list[SinkFacts]:
    """
    The sinks of the checkpoint's query, as the ledger has them; none if there is no ledger yet.

    :raises LedgerError: if the ledger cannot be read.
    """
    if checkpoint.query_id is None:
        return []
    try:
        with reading(url) as connection:
            sinks = read_sinks(connection, checkpoint.query_id, checkpoint.offsets.keys())
            return [_with_task_positions(connection, sink) for sink in sinks] if checkpoint.is_real_time else sinks
    except NoLedgerError:
        # Before the first batch, and after a continuous query, the checkpoint alone says what to do.
        if checkpoint.newest in (None, 0) or checkpoint.is_continuous:
            return []
        raise


def read_sinks(connection: Connection, query_id: str, batch_ids: Collection[int] = ()) -> list[SinkFacts]:
    """
    Every writer of a query that has published, in the order of sinks; replaced and retired ones too.

    :param batch_ids: the batches in its checkpoint, whose records are read besides those of the newest two.
    """
    found = writers_in_tx(connection, writers.c.query_id == query_id)
    return [_sink(connection, writer, batch_ids) for writer in found]


def named_sinks(
    connection: Connection, query: str, sink: str | None = None
) -> tuple[list[StoredWriter], list[SinkFacts]]:
    """
    The writers of a query that a person names, or the one of ``sink``, and what is known of each.

    :raises OffsetsError: if no query or sink, or several, have that name.
    """
    found = writers_of(connection, query, sink)
    known = read_sinks(connection, found[0].query_id)
    return found, [one for one in known if one.sink_name in {writer.sink_name for writer in found}]


def _with_task_positions(connection: Connection, sink: SinkFacts) -> SinkFacts:
    """The sink of a query in real time, whose tasks go on between two records."""
    stored = task_positions(connection, [sink.writer_id]).get(sink.writer_id)
    return replace(sink, end_offsets=furthest(sink.end_offsets, stored))


def _sink(connection: Connection, writer: Writer, batch_ids: Collection[int]) -> SinkFacts:
    matters = or_(batches.c.batch_id.in_(list(batch_ids)), batches.c.batch_id >= writer.last_batch_id - 1)
    records = records_in_tx(connection, writer, matters)
    accepted = connection.execute(select(interventions.c.batch_id).where(is_open(writer.writer_id))).scalars()
    known = {field.name: getattr(writer, field.name) for field in fields(Writer)}
    known |= {"end_offsets": writer.end, "last": records.get(writer.last_batch_id)}
    return SinkFacts(
        **known, records=records, accepted=frozenset(batch_id for batch_id in accepted if batch_id is not None)
    )
