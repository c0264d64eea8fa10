"""
What Spark does with a query's checkpoint, as far as a sink can tell.

Runs in: pytest. Invariant: it keeps to the order of files of ``MicroBatchExecution``: the entry of a batch before its
rows, a commit marker after them, and a start runs the newest entry again unless that is committed.
"""

from __future__ import annotations

import json
import shutil
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import types as t
from support.typed_rows import struct_of

# A row: its own name, and the place of the record that it comes from.
STRUCT = struct_of(
    {"id": t.StringType(), "topic": t.StringType(), "partition": t.IntegerType(), "offset": t.LongType()}
)
ARROW = pa.schema([("id", "string"), ("topic", "string"), ("partition", "int32"), ("offset", "int64")])

Positions = dict[int, int]


@dataclass
class Topic:
    """A topic: partition to the rows that its records become (none where the query filters the record out)."""

    partitions: dict[int, list[int]] = field(default_factory=dict)

    def rows(self, start: Positions, end: Positions) -> list[tuple[int, int, int]]:
        """Partition, offset and number of each row of a range."""
        return [
            (partition, offset, number)
            for partition, head in end.items()
            for offset in range(start.get(partition, 0), head)
            for number in range(self.partitions[partition][offset])
        ]

    @property
    def heads(self) -> Positions:
        """Where each partition ends now."""
        return {partition: len(records) for partition, records in self.partitions.items()}


@dataclass
class Planned:
    """A batch as Spark plans it."""

    batch_id: int
    start: Positions
    end: Positions
    planned_at_ms: int


class QueryOnDisk:
    """One query's checkpoint, and the run that writes to it."""

    def __init__(self, root: Path, topic: Topic) -> None:
        self.root = root
        self.topic = topic
        self.query_id = str(uuid.uuid4())
        self._clock = 1_700_000_000_000
        (root / "sources" / "0").mkdir(parents=True)
        (root / "metadata").write_text(json.dumps({"id": self.query_id}))
        begin = self._offset(dict.fromkeys(topic.partitions, 0))
        (root / "sources" / "0" / "0").write_bytes(b"\x00v1\n" + begin.encode())
        for folder in ("offsets", "commits"):
            (root / folder).mkdir()
        self.start()

    def start(self) -> None:
        """Begin a run, as ``populateStartOffsets`` does."""
        self.run_id = str(uuid.uuid4())
        self._again: int | None = None
        entries, done = self.numbers("offsets"), self.numbers("commits")
        newest = max(entries, default=-1)
        if newest == max(done, default=-1):
            self._next, self._at = newest + 1, self._end(newest)
            return
        self._again = newest
        self._next, self._at = newest, self._end(max((n for n in entries if n < newest), default=-1))

    def plan(self, advance: dict[int, int]) -> Planned | None:
        """The next batch, ``advance`` records further in each partition; None where there is nothing new."""
        if self._again is not None:
            planned = Planned(self._again, self._at, self._end(self._again), self._tick())
            self._again = None
            return planned
        heads = self.topic.heads
        begins = {p: self._at.get(p, 0) for p in heads}
        end = {p: min(head, begins[p] + advance.get(p, 0)) for p, head in heads.items()}
        if end == begins:
            return None
        # A partition that was added since is not among the start offsets, and is read from its first record.
        start = {p: at for p, at in begins.items() if p in self._at}
        return Planned(self._next, start, end, self._tick())

    def write_entry(self, planned: Planned) -> None:
        """Write ``offsets/N``, unless the batch is run again."""
        path = self.root / "offsets" / str(planned.batch_id)
        if not path.exists():
            metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": planned.planned_at_ms, "conf": {}})
            path.write_text(f"v1\n{metadata}\n{self._offset(planned.end)}")

    def write_commit(self, planned: Planned) -> None:
        """Write ``commits/N``."""
        (self.root / "commits" / str(planned.batch_id)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def advance(self, planned: Planned) -> None:
        """The batch is done: the run goes on behind it."""
        self._next, self._at = planned.batch_id + 1, planned.end

    def numbers(self, folder: str) -> list[int]:
        """The batches in ``offsets`` or ``commits``."""
        return [int(path.name) for path in (self.root / folder).iterdir() if path.name.isdecimal()]

    def forget_before(self, batch_id: int) -> None:
        """Delete what is old, as Spark does by ``minBatchesToRetain``."""
        for folder in ("offsets", "commits"):
            for number in self.numbers(folder):
                if number < batch_id:
                    (self.root / folder / str(number)).unlink()

    def roll_back(self, batch_id: int) -> None:
        """Take away what is newer than ``batch_id``."""
        for folder in ("offsets", "commits"):
            for number in self.numbers(folder):
                if number > batch_id:
                    (self.root / folder / str(number)).unlink()

    def remove(self) -> None:
        """Delete the checkpoint's files."""
        shutil.rmtree(self.root)

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _end(self, batch_id: int) -> Positions:
        if batch_id < 0:
            return json_positions((self.root / "sources" / "0" / "0").read_text().splitlines()[-1])
        return json_positions((self.root / "offsets" / str(batch_id)).read_text().splitlines()[-1])

    @staticmethod
    def _offset(end: Positions) -> str:
        return json.dumps({"t": {str(partition): offset for partition, offset in end.items()}})


def json_positions(text: str) -> Positions:
    """Partition to offset, of Kafka's offset JSON."""
    return {int(partition): offset for partition, offset in json.loads(text)["t"].items()}
