"""
Write a checkpoint from the ledger for a query that has lost its own: the same query id, at the batch of the ledger.

Runs in the command ``pgonce new-checkpoint``. Invariant: it is planned as a recovery of a checkpoint without
any entry is, so it is judged before it is written. It is written only to a place that is empty, or has a part of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pgonce.offsets_store.checkpoint.log_entries import parse_offset_log, query_id_text
from pgonce.offsets_store.checkpoint.writer import CheckpointWriter
from pgonce.offsets_store.errors import RecoveryError
from pgonce.offsets_store.ledger.session import reading
from pgonce.offsets_store.log_lines import in_command
from pgonce.offsets_store.offsets import same
from pgonce.offsets_store.status.read_stored import writers_of
from pgonce.offsets_store.verdict.decide import stored_end
from pgonce.offsets_store.verdict.refused_batch import EMPTY_STATE

from .fence import QUIET_SECONDS, StoppedQuery, take_over
from .plan import plan_to_the_ledger
from .read_stopped_query import read_sinks
from .recover import recovered
from .stopped_query import (
    NOTHING_CHANGED,
    Change,
    CheckpointFacts,
    SinkFacts,
    common_text,
    living_sinks,
    newest_of,
    proven_text,
    refuse_ids_alone,
    unproven,
)
from .target import METADATA_LINE

# Where a writer's rows carry positions, the newest recorded text may be some batches old.
_LOOK_BACK = 1000


@dataclass(frozen=True)
class NewCheckpoint:
    """
    The files in the order in which they are written, and the batch at which the checkpoint stands.

    ``entry`` is the text that the ledger must record with that batch if it has none. ``does`` is the text for all this.
    """

    query_id: str
    files: tuple[Change, ...]
    stands_at: int
    entry: str | None
    does: str


def write_new_checkpoint(
    query: str,
    path: str,
    url: str = "",
    *,
    dry_run: bool = False,
    quiet_seconds: float = QUIET_SECONDS,
    wait_seconds: float = 0,
) -> NewCheckpoint:
    """
    Write a checkpoint for ``query`` (its id or name) to ``path``, which must be empty.

    If it is cut short, the same call goes on from there.

    :raises RecoveryError: PATH_NOT_EMPTY; QUERY_RUNNING; or where the ledger does not prove what to write.
    :raises OffsetsError: if no query, or several, have that name.
    """

    def once() -> NewCheckpoint:
        with reading(url) as connection:
            query_id = writers_of(connection, query, None)[0].query_id
            last = max((sink.last_batch_id for sink in read_sinks(connection, query_id)), default=0)
            sinks = read_sinks(connection, query_id, range(max(0, last - _LOOK_BACK), last))
        writer = CheckpointWriter(path)
        plan = plan_new_checkpoint(query_id, sinks)
        _refuse_other_files(writer, plan.files)
        if dry_run:
            return plan
        stopped = StoppedQuery(url, query_id, sinks, quiet_seconds, wait_seconds)
        details = {"location": writer.location, "files": [name for name, _ in plan.files]}
        take_over(stopped, "new-checkpoint", plan.stands_at, details, plan.entry)
        for name, text in plan.files:
            writer.put(name, (text or "").encode())
        return plan

    return recovered(once, query, wait_seconds)


def _refuse_other_files(writer: CheckpointWriter, files: Sequence[Change]) -> None:
    """:raises RecoveryError: PATH_NOT_EMPTY, unless there is nothing, or a part that a run cut short has written."""
    if writer.is_empty():
        return
    folders = {name.rpartition("/")[0] for name, _ in files}
    there = {f"{folder}/{name}".lstrip("/") for folder in folders for name in writer.files.names(folder)} - folders
    # A store may not list yet what it has.
    read = {name: writer.files.read(name) for name, _ in files}
    there |= {name for name, data in read.items() if data is not None}
    written = {name for name, text in files if read[name] == (text or "").encode()}
    # What was being written has a name with a dot.
    others = [name for name in there - written if not name.rpartition("/")[2].startswith(".")]
    if others or len(written) == len(files):
        raise RecoveryError(
            "PATH_NOT_EMPTY",
            f"{writer.location} is not empty.",
            NOTHING_CHANGED,
            "Give a path where there is nothing yet. If a checkpoint is there that does not agree with the ledger, "
            "`pgonce recover` repairs it.",
        )


def plan_new_checkpoint(query_id: str, sinks: Sequence[SinkFacts]) -> NewCheckpoint:
    """
    What to write, by what the ledger knows.

    :raises RecoveryError: if that is not enough.
    """
    # First, because without it an older Spark would begin a new query. (A start from it alone would be refused.)
    metadata = Change("metadata", query_id_text(query_id))
    empty = CheckpointFacts(f"of query {query_id}", query_id, {}, {}, frozenset(), {}, {}, is_stateful=False)
    living = living_sinks(empty, sinks)
    # First: for a query that is judged by ids, it is not recorded whether it keeps state.
    refuse_ids_alone(living)
    if any(sink.stateful is not False for sink in living):
        raise _perhaps_stateful(query_id)
    newest, ahead, behind = newest_of(living)
    text = common_text(ahead, newest)
    made_up = _entry_at_the_end(ahead, newest) if text is None else None
    offsets = parse_offset_log(text or made_up or "").offsets
    if lacking := [source_id for source_id, offset in offsets.items() if offset is None]:
        raise unproven(f"Source {lacking[0]} has no offset yet, and would begin again, perhaps elsewhere.")
    plan = plan_to_the_ledger(empty, [*behind, *(_with_text(sink, made_up) for sink in ahead)])
    return NewCheckpoint(query_id, (metadata, *plan.changes), newest, made_up, plan.does)


def _entry_at_the_end(sinks: Sequence[SinkFacts], newest: int) -> str:
    """For rows that carry their positions: an entry at the stored end, in the form of the newest recorded one."""
    ends = [stored_end(sink.ledger(newest, None)) for sink in sinks]
    if not all(sink.drops_by_position for sink in sinks) or not all(same(ends[0], end) for end in ends):
        return proven_text(sinks, newest)
    (source_id, offset), *others = ends[0].items()
    if others:
        raise unproven("The query reads several sources, and no text of offsets/ says in which order.")
    texts = [text for sink in sinks for number in sorted(sink.records) if (text := sink.text_of(number)) is not None]
    form = parse_offset_log(texts[-1]) if texts else None
    version = form.version if form else 1
    metadata = json.dumps(form.metadata, separators=(",", ":")) if form else METADATA_LINE
    line = json.dumps(offset, separators=(",", ":"))
    return f"v{version}\n{metadata}\n{line if version == 1 else f'{source_id}:{line}'}"


def _with_text(sink: SinkFacts, text: str | None) -> SinkFacts:
    if text is None or sink.last is None:
        return sink
    last = replace(sink.last, offset_log=text)
    return replace(sink, records={**sink.records, sink.last_batch_id: last}, last=last)


def _perhaps_stateful(query_id: str) -> RecoveryError:
    typed = in_command(query_id, "QUERY")
    return RecoveryError(
        "RECOVERY_STATEFUL",
        f"Query {query_id} keeps state, or its batches (of older versions) did not record that it keeps none.",
        NOTHING_CHANGED,
        "State cannot be made from the ledger. Start a new checkpoint at the stored offsets (Kafka): "
        f"`pgonce offsets {typed} --starting-offsets`, with replaces={query_id} "
        f"({EMPTY_STATE}).",
    )
