"""
What should happen: Spark's side of a batch (source, checkpoint, runs), and the verdict that the docs promise for it.

Runs in: pytest, without I/O. Invariant: it knows by identity which planning a batch is, never by comparing texts, and
does not ask the code under test for a verdict.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from pgonce.offsets_store.checkpoint.files import CheckpointFiles

T = TypeVar("T")
PUBLISHED, SKIPPED = {"NEW"}, {"LANDED", "REPLAY", "ADOPTED"}
# record.py prunes with every sixteenth batch.
PRUNE_EVERY = 16

_planning = itertools.count(1_700_000_000_000)


@dataclass(frozen=True)
class Source:
    """
    Rows by position, which any checkpoint finds in the same order; only Kafka's offsets say which ones.

    ``topic`` is Kafka's; None for files. Two sources may have one topic, as clusters have topics of one name.
    """

    name: str
    topic: str | None

    @property
    def is_kafka(self) -> bool:
        """Whether it is a topic."""
        return self.topic is not None

    def offsets(self, batch_id: int, end: int) -> dict[str, Any]:
        """What ``offsets/N`` says of a batch that ends before position ``end``."""
        return {self.topic: {"0": end}} if self.topic else {"logOffset": batch_id}


@dataclass(eq=False)
class Plan:
    """One planning of one batch. Two of them are never the same, whatever they say."""

    batch_id: int
    start: int
    end: int
    text: str
    label: str

    @property
    def positions(self) -> range:
        """The rows; none where the range goes back."""
        return range(self.start, self.end)

    def __repr__(self) -> str:
        return f"<{self.label}: {self.start} to {self.end}>"


class Folder(CheckpointFiles):
    """A checkpoint, as its query keeps it; and how the job that uses it is set up."""

    read_by = "python"

    def __init__(self, query_id: str, source: Source, location: str, name: str | None, *, begins_at: int = 0) -> None:
        super().__init__(location)
        self.query_id = query_id
        self.source = source
        self.name = name
        self.begins_at = begins_at
        self.plans: dict[int, Plan] = {}
        self.committed: set[int] = set()
        self.remedies: dict[str, Any] = {}
        self.by_id = False

    @property
    def newest(self) -> int:
        """The number of the newest entry, -1 where there is none."""
        return max(self.plans, default=-1)

    def plan(self, batch_id: int, start: int, end: int) -> Plan:
        """Write ``offsets/N``, over what may be there."""
        self.plans[batch_id] = self.planned(batch_id, start, end)
        return self.plans[batch_id]

    def planned(self, batch_id: int, start: int, end: int) -> Plan:
        """A batch whose entry is not written, or not yet."""
        planned_at = next(_planning)
        offsets = json.dumps(self.source.offsets(batch_id, end))
        text = f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":{planned_at},"conf":{{}}}}\n{offsets}'
        return Plan(batch_id, start, end, text, f"{self.query_id}/{batch_id}/{planned_at}")

    def copied(self, location: str) -> Folder:
        """The same files in another place."""
        twin = copy.copy(self)
        twin.shown = location
        twin.plans, twin.committed, twin.remedies = dict(self.plans), set(self.committed), dict(self.remedies)
        return twin

    def ask(self, question: Callable[[str], T], name: str) -> T | None:
        try:
            return question(name)
        except LookupError:
            return None

    def _read(self, path: str) -> bytes:
        if path == "metadata":
            return json.dumps({"id": self.query_id}).encode()
        if path == "sources/0/0" and self.source.is_kafka:
            return b"\x00v1\n" + json.dumps(self.source.offsets(0, self.begins_at)).encode()
        folder, _, number = path.partition("/")
        if folder == "commits" and int(number) in self.committed:
            return b'v1\n{"nextBatchWatermarkMs":0}'
        if folder == "offsets":
            return self.plans[int(number)].text.encode()
        raise LookupError(path)

    def _names(self, path: str) -> list[str]:
        return {
            "offsets": [str(n) for n in self.plans],
            "commits": [str(n) for n in self.committed],
            "sources": ["0"] if self.source.is_kafka else [],
        }[path]

    def _exists(self, path: str) -> bool:
        return path != "state" and bool(self._read(path))


@dataclass(frozen=True)
class HandIn:
    """A batch that comes to be published: whose, which planning, after which, and under which token."""

    folder: Folder
    location: str
    run_id: str
    plan: Plan
    previous: Plan | None
    attempt: UUID
    by_id: bool

    @property
    def says_its_topic(self) -> bool:
        """Whether the commit knows what the query reads."""
        return self.folder.source.is_kafka and not self.by_id


@dataclass(frozen=True)
class Record:
    """A published batch."""

    plan: Plan
    run_id: str
    attempt: UUID
    rows: int
    by_id: bool


@dataclass
class Writer:
    """What is remembered of one query."""

    owner: str
    location: str
    name: str | None
    source: Source
    records: dict[int, Record] = field(default_factory=dict)
    owners: set[str] = field(default_factory=set)
    skips: dict[tuple[int, str], UUID] = field(default_factory=dict)
    replaced_by: str | None = None
    by_id: bool = False
    is_known: bool = True
    is_forgotten: bool = False

    @property
    def last(self) -> Record:
        """The newest record, which is never pruned."""
        return self.records[max(self.records)]

    def shares_partitions(self, other: HandIn) -> bool:
        """Whether both are known to read the same topic, on whatever cluster."""
        ours = other.folder.source
        are_kafka = self.source.is_kafka and ours.is_kafka and not self.by_id and not other.by_id
        return are_kafka and self.source.topic == ours.topic

    def is_apart(self, other: HandIn) -> bool:
        """Whether it is proven that both read something else."""
        return self.is_known and other.says_its_topic and self.source.topic != other.folder.source.topic


@dataclass
class World:
    """What the database should hold: each source's rows in the target, and the writers."""

    retain: int
    rows: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    writers: dict[str, Writer] = field(default_factory=dict)

    def kept(self) -> World:
        """A copy, as a backup is one; plannings stay the same ones."""
        writers = {
            query_id: Writer(
                **{**vars(writer), "records": {**writer.records}, "owners": {*writer.owners}, "skips": {**writer.skips}}
            )
            for query_id, writer in self.writers.items()
        }
        return World(self.retain, {name: [*rows] for name, rows in self.rows.items()}, writers)

    def promised(self, batch: HandIn) -> str:
        """The verdict of docs/guarantees.md, in its order."""
        writer = self.writers.get(batch.folder.query_id)
        verdict = self._promised_to(writer, batch) if writer else self._promised_to_strangers(batch)
        goes_back = batch.folder.source.is_kafka and not batch.by_id and batch.plan.end < batch.plan.start
        return "BACKWARD" if verdict == "NEW" and goes_back else verdict

    def _promised_to(self, writer: Writer, batch: HandIn) -> str:
        n = batch.plan.batch_id
        record = writer.records.get(n)
        if record and record.attempt == batch.attempt:
            return "LANDED"
        if (
            writer.replaced_by
            or writer.is_forgotten
            or (batch.run_id in writer.owners and writer.owner != batch.run_id)
        ):
            return "FENCED"
        skipped = writer.skips.get((n, batch.run_id))
        if (skipped and skipped != batch.attempt) or (record and record.run_id == batch.run_id):
            return "DUPLICATE"
        last = writer.last.plan.batch_id
        if n <= last:
            # A record without its text proves nothing: its offsets are not filled in.
            proven = record and (batch.by_id or (not record.by_id and record.plan is batch.plan))
            return "REPLAY" if proven else "CHANGED"
        if n > last + 1:
            return "GAP"
        follows = batch.by_id or (not writer.last.by_id and writer.last.plan is batch.previous)
        return "NEW" if follows else "DISJOINT"

    def _promised_to_strangers(self, batch: HandIn) -> str:
        n = batch.plan.batch_id
        adopt = batch.folder.remedies.get("adopt_checkpoint")
        if adopt == n + 1:
            return "ADOPTED"
        if n > 0:
            return "NEW" if adopt == n else "UNKNOWN"
        if batch.folder.remedies.get("independent"):
            return "NEW"
        replaces = batch.folder.remedies.get("replaces")
        others = self.rivals(batch) - {replaces}
        return "FOREIGN" if others or (replaces and not self._continues(batch, replaces)) else "NEW"

    def rivals(self, batch: HandIn) -> set[str]:
        """The other queries that feed this sink and are not proven to do it with other rows."""
        # The rest of what a query would have read is to the others what it was before.
        replaces = "replaces" in batch.folder.remedies
        return {
            query_id
            for query_id, writer in self.writers.items()
            if query_id != batch.folder.query_id
            and not writer.replaced_by
            and not writer.is_forgotten
            and (
                writer.location == batch.location
                or (writer.name and writer.name == batch.folder.name)
                or writer.shares_partitions(batch)
                or not (replaces or writer.is_apart(batch))
            )
        }

    def _continues(self, batch: HandIn, replaced: str) -> bool:
        old = self.writers.get(replaced)
        return old is not None and old.shares_partitions(batch) and old.last.plan.end == batch.plan.start

    def forget(self, query_id: str) -> None:
        """Empty a query's rows, and let it be out of the way."""
        writer = self.writers[query_id]
        writer.is_forgotten = True
        self.rows[writer.source.name] = []

    def take(self, batch: HandIn, verdict: str) -> None:
        """Let the batch have the effect of its verdict."""
        if verdict in {"NEW", "ADOPTED"}:
            self._publish(batch, adopted=verdict == "ADOPTED")
        elif verdict == "REPLAY":
            skips = self.writers[batch.folder.query_id].skips
            skips.setdefault((batch.plan.batch_id, batch.run_id), batch.attempt)

    def _publish(self, batch: HandIn, *, adopted: bool) -> None:
        folder, plan = batch.folder, batch.plan
        replaces = folder.remedies.get("replaces")
        if folder.query_id not in self.writers and replaces:
            self.writers[replaces].replaced_by = folder.query_id
        writer = self.writers.setdefault(
            folder.query_id, Writer(batch.run_id, batch.location, folder.name, folder.source)
        )
        rows = [] if adopted else [(position, plan.label) for position in plan.positions]
        self.rows.setdefault(folder.source.name, []).extend(rows)
        writer.records[plan.batch_id] = Record(plan, batch.run_id, batch.attempt, len(rows), batch.by_id)
        writer.owner, writer.location, writer.by_id = batch.run_id, batch.location, batch.by_id
        # What one batch did not show is not known for good.
        writer.is_known &= batch.says_its_topic
        writer.owners.add(batch.run_id)
        if plan.batch_id % PRUNE_EVERY == 0:
            oldest = plan.batch_id - self.retain
            writer.records = {n: record for n, record in writer.records.items() if n > oldest}
            writer.skips = {skip: token for skip, token in writer.skips.items() if skip[0] > oldest}
