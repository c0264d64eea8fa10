"""
What is known of a stopped query: the files of its checkpoint, and the ledger's rows of its sinks.

Pure: made by ``read_stopped_query``, judged by ``next_start`` and ``plan``. Invariant: facts that are equal when they
are read a second time mean that nothing has changed in between. What they do not prove is refused, with a remedy that
names only commands and options that exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pgonce.offsets_store.checkpoint.log_entries import CommitLog, OffsetLog, parse_commit_log, parse_offset_log
from pgonce.offsets_store.errors import NOTHING_CHANGED, NoCheckpointError, RecoveryError, UnknownQueryError
from pgonce.offsets_store.offsets import Offsets
from pgonce.offsets_store.verdict.facts import Ledger, Recorded, Writer
from pgonce.offsets_store.verdict.refused_batch import ANOTHER_TOPIC, EMPTY_STATE

from .state_files import StateFile

_ENTRY = re.compile(r"(offsets|commits)/([0-9]+)", re.ASCII)


class Change(NamedTuple):
    """A file of a checkpoint, by its name there, and its new text; None if it is removed."""

    name: str
    text: str | None


class SideLog(NamedTuple):
    """The numbers of the entries in a folder ``sources/<i>``: of single ones, and of compacted ones."""

    entries: frozenset[int]
    compacted: frozenset[int]

    def covers(self, number: int) -> bool:
        """Whether the entry of this number can be read there."""
        return number in self.entries or any(compact >= number for compact in self.compacted)


@dataclass(frozen=True)
class CheckpointFacts:
    """
    One query's checkpoint. ``query_id`` is None where the file ``metadata`` is missing.

    ``checksums`` are the names of Hadoop's ``.N.crc`` files (on local disks only), and ``initial`` is where batch 0
    began. ``unfinished`` are the files that a driver leaves in ``offsets/`` if it is killed while it writes the first
    entry. ``state_since`` are the files in ``state/`` of versions later than that of the newest commit; None if they
    were not read. ``damaged`` are the entries that are there and cannot be read, such as those that a host left empty
    when it lost power; they are none of the others. ``has_real_time_runs`` is whether start_real_time has made
    checkpoints of its runs inside this one.
    """

    location: str
    query_id: str | None
    offsets: Mapping[int, OffsetLog]
    commits: Mapping[int, CommitLog]
    checksums: frozenset[str]
    side_logs: Mapping[str, SideLog]
    initial: Offsets
    is_stateful: bool
    unfinished: frozenset[str] = frozenset()
    state_since: frozenset[StateFile] | None = None
    has_real_time_runs: bool = False
    damaged: frozenset[str] = frozenset()

    @property
    def newest(self) -> int | None:
        """The newest batch in ``offsets/``."""
        return max(self.offsets, default=None)

    @property
    def newest_commit(self) -> int | None:
        """The newest batch in ``commits/``."""
        return max(self.commits, default=None)

    @property
    def commits_lead(self) -> bool:
        """Whether Spark has done a batch whose entry is gone, or cannot be read."""
        return self.newest_commit is not None and (self.newest is None or self.newest < self.newest_commit)

    @property
    def is_continuous(self) -> bool:
        """Whether a continuous query has written the newest entry."""
        return self.newest is not None and self.offsets[self.newest].is_continuous

    @property
    def is_real_time(self) -> bool:
        """Whether the query has run in real time only: then the ledger alone says where it goes on."""
        return self.has_real_time_runs and not self.offsets and not self.commits

    @property
    def is_empty(self) -> bool:
        """Whether there is no checkpoint at all, and a start would begin a new query."""
        return self.query_id is None and not self.offsets and not self.commits

    @property
    def orphans(self) -> tuple[str, ...]:
        """Checksums whose file is missing: they make Spark's next write of that file fail."""
        entries = (*(f"offsets/{n}" for n in self.offsets), *(f"commits/{n}" for n in self.commits))
        there = set(map(checksum_of, entries))
        return tuple(sorted(self.checksums - there))

    @property
    def useless(self) -> tuple[str, ...]:
        """What is to be removed in any case, in this order: a checksum before its file."""
        return (*self.orphans, *sorted(self.damaged))

    def entry_before(self, batch_id: int) -> int | None:
        """The newest entry of ``offsets/`` below ``batch_id``."""
        return max((number for number in self.offsets if number < batch_id), default=None)

    def after(self, changes: Sequence[Change]) -> CheckpointFacts:
        """The checkpoint as it will be when ``changes`` are made."""
        offsets, commits, checksums = dict(self.offsets), dict(self.commits), set(self.checksums)
        logs: Mapping[str, tuple[dict[int, Any], Callable[[str], Any]]]
        logs = {"offsets": (offsets, parse_offset_log), "commits": (commits, parse_commit_log)}
        gone = {name for name, text in changes if text is None}
        for name, text in changes:
            checksums.discard(name)
            if (match := _ENTRY.fullmatch(name)) is None:
                continue
            number, (entries, parse) = int(match[2]), logs[match[1]]
            entries.pop(number, None)
            if text is not None:
                entries[number] = parse(text)
        return replace(
            self,
            offsets=offsets,
            commits=commits,
            checksums=frozenset(checksums),
            unfinished=self.unfinished - gone,
            damaged=self.damaged - gone,
            state_since=self.state_since and frozenset(file for file in self.state_since if file.name not in gone),
        )


@dataclass(frozen=True, kw_only=True)
class SinkFacts(Writer):
    """
    What the ledger knows of one sink: the writer's row, and the records of the batches that matter here.

    ``accepted`` are the batches that a person has accepted and that have not come yet.
    """

    records: Mapping[int, Recorded]
    accepted: frozenset[int] = frozenset()

    @property
    def fate(self) -> str:
        """The text for what became of a sink that is not living."""
        if self.replaced_by:
            return f"replaced by query {self.replaced_by}"
        return f"retired or forgotten at {self.retired_at}"

    @property
    def drops_by_position(self) -> bool:
        """Whether its rows carry their positions, so that a range may overlap what is stored."""
        return self.last is not None and self.last.positions is not None

    def text_of(self, batch_id: int) -> str | None:
        """The recorded text of ``offsets/<batch_id>``."""
        record = self.records.get(batch_id)
        return record.offset_log if record else None

    def ledger(self, batch_id: int, previous_batch_id: int | None) -> Ledger:
        """What the commit of a batch of a new run would read of this writer."""
        return Ledger(
            writer=self,
            same_id=self.records.get(batch_id),
            previous=None if previous_batch_id is None else self.records.get(previous_batch_id),
        )


def checksum_of(name: str) -> str:
    """The name of the checksum that Hadoop keeps next to a file on a local disk."""
    folder, _, file = name.rpartition("/")
    return f"{folder}/.{file}.crc"


def side_log_number(offset: Any) -> int | None:
    """The entry of ``sources/<i>`` that a file source's offset stands for; None if it is not such an offset."""
    if isinstance(offset, dict) and offset.keys() == {"logOffset"} and type(offset["logOffset"]) is int:
        return int(offset["logOffset"])
    return None


def no_checkpoint(checkpoint: CheckpointFacts) -> NoCheckpointError:
    """The file ``metadata`` is missing, so nothing says whose checkpoint this is."""
    return NoCheckpointError(
        "CHECKPOINT_NOT_FOUND",
        f"There is no checkpoint of a query at {checkpoint.location}: it has no file named metadata"
        + (f", though offsets/ ends with batch {checkpoint.newest}." if checkpoint.offsets else "."),
        NOTHING_CHANGED,
        "Give the location that the query itself uses. If only the file is lost, write it again: "
        '{"id":"<query id>"}, with the id that `pgonce status QUERY` shows together with this location. If the whole '
        "checkpoint was deleted: page `recovering` of the documentation, A lost checkpoint.",
    )


def query_id_of(checkpoint: CheckpointFacts) -> str:
    """:raises NoCheckpointError: if the file ``metadata`` is missing."""
    if checkpoint.query_id is None:
        raise no_checkpoint(checkpoint)
    return checkpoint.query_id


def living_sinks(checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts]) -> list[SinkFacts]:
    """
    The sinks that may publish.

    :raises RecoveryError: UNKNOWN, if there is none (UnknownQueryError, if none is known).
    """
    living = [sink for sink in sinks if sink.is_living]
    if living:
        return living
    nothing = f"so nothing is known about the checkpoint {checkpoint.location}."
    if not sinks:
        raise UnknownQueryError.usual(
            "UNKNOWN", f"The ledger does not know query {checkpoint.query_id}, {nothing}", _ELSEWHERE
        )
    gone = ", ".join(sink.sink_name for sink in sinks)
    known = f"The ledger knows query {checkpoint.query_id} only with sinks that were replaced or retired ({gone}), "
    raise RecoveryError.usual("UNKNOWN", f"{known}{nothing}", _ELSEWHERE)


_ELSEWHERE = (
    "Check that url names the database that the query writes to. A query that wrote elsewhere before is taken in with "
    "adoptCheckpoint: page `replace-your-foreachbatch` of the documentation. If the database fell back to a time "
    "before the first batch of this query, start it on a new, empty checkpoint that begins with the first record whose "
    "row is lost."
)


def proven_text(sinks: Sequence[SinkFacts], batch_id: int) -> str:
    """
    The text of an entry that all sinks have recorded.

    :raises RecoveryError: RECOVERY_UNPROVEN, if there is none, or their texts differ.
    """
    texts = {sink.text_of(batch_id) for sink in sinks}
    text = texts.pop()
    if texts or text is None:
        names = ", ".join(sink.sink_name for sink in sinks)
        raise unproven(
            f"The ledger does not have the text of offsets/{batch_id}, or not the same text for each sink ({names})."
        )
    return text


def refuse_ids_alone(sinks: Sequence[SinkFacts]) -> None:
    """:raises RecoveryError: RECOVERY_UNPROVEN, if a sink was judged by batch ids alone."""
    if names := ", ".join(sink.sink_name for sink in sinks if sink.guarantee == "ids"):
        raise unproven(
            f"The sink {names} was written with offsetsFrom=listener: the ledger has batch ids of it and no texts of "
            "offsets/, and ids alone prove nothing."
        )


def newest_of(sinks: Sequence[SinkFacts]) -> tuple[int, list[SinkFacts], list[SinkFacts]]:
    """
    The newest batch of any sink, the sinks that have published it, and those that still lack it.

    :raises RecoveryError: RECOVERY_APART, if one lacks more than this batch.
    """
    newest = max(sink.last_batch_id for sink in sinks)
    behind = [sink for sink in sinks if sink.last_batch_id < newest]
    if any(sink.last_batch_id < newest - 1 for sink in behind):
        where = ", ".join(f"{sink.sink_name} at batch {sink.last_batch_id}" for sink in sinks)
        raise RecoveryError.usual(
            "RECOVERY_APART",
            f"The query's sinks stand more than one batch apart ({where}), and Spark runs only one batch again.",
            "If one of them is gone for good, say so with `pgonce retire`, and recover again. If all are in use, bring "
            "back a database in which they stood at the same batch.",
        )
    return newest, [sink for sink in sinks if sink.last_batch_id == newest], behind


def topic_recreated(batch_id: int) -> RecoveryError:
    """The next batch ends before it starts, so a topic was recreated."""
    return unproven(
        f"The range of batch {batch_id} goes back, or a partition of it is gone: the topic was recreated, and planning "
        "the batch again would not change that.",
        ANOTHER_TOPIC,
    )


def unproven(what: str, remedy: str = "") -> RecoveryError:
    """Nothing proves what to do."""
    return RecoveryError.usual("RECOVERY_UNPROVEN", what, remedy or _ELSE)


NEW_START = (
    "start a new checkpoint at the stored offsets (Kafka): `pgonce offsets QUERY`, with replaces=<query id> "
    f"({EMPTY_STATE})"
)
_ELSE = (
    f"Bring back checkpoint and database of the same time; or {NEW_START}; or, if you know that the next batch is the "
    "right one, let it through with `pgonce accept`. To load the table again instead, use `pgonce forget` first."
)
