"""
The driver under test: a query for each workload, kept running as a supervisor would keep it.

Runs in: a process of its own, started by the laboratory with a JSON object (:class:`Subject`). Invariant: it knows of
no fault; a query that fails is started again as it is, one that was told that another driver goes on is left stopped,
and every end is written down.
"""

from __future__ import annotations

import json
import re
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chaos.seams import lower_thresholds
from chaos.sources import Stream
from chaos.workloads import WORKLOADS, Place
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from support.queries_job import waiting_when_told
from support.spark_session import started_session

from pgonce import PgonceError

_TRIGGER = "100 milliseconds"
_PAUSE_SECONDS = 0.05
_AFTER_REFUSAL_SECONDS = 0.5
# With these a query ends that has met another driver on its checkpoint: by pgonce's word, from the ledger or from the
# checkpoint's files, or by Spark's.
_OUR_WORDS = ("[FENCED]", "[CHECKPOINT_IN_USE]", "[NOT_MICRO_BATCH]")
SPARKS_WORDS = (
    "CONCURRENT_STREAM_LOG_UPDATE",
    "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY",
    "Multiple streaming jobs detected",
    "Multiple streaming queries",
)
_CODE = re.compile(r"\[([A-Z_]{4,})[.A-Z_]*]")


@dataclass(frozen=True)
class Subject:
    """What to run: ``urls`` by workload; ``settings`` are Spark's; ``can_wait`` names those whose tasks can be held."""

    name: str
    directory: str
    source: dict[str, Any]
    urls: dict[str, str]
    settings: dict[str, str]
    can_wait: tuple[str, ...] = ()

    @property
    def diary(self) -> Path:
        """What happened to its queries, a JSON object a line."""
        return Path(self.directory) / f"{self.name}.jsonl"

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The diary's lines, but one that is being written."""
        text = self.diary.read_text() if self.diary.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def sign(self, name: str) -> Path:
        """An empty file by which laboratory and subject speak: ``finish``, ``revive``."""
        return Path(self.directory) / name

    def to_json(self) -> str:
        """As the driver's argument."""
        return json.dumps(asdict(self))


def another_driver(ending: str) -> str | None:
    """The words that tell of another driver; None where there are none."""
    return next((word for word in (*_OUR_WORDS, *SPARKS_WORDS) if word in ending), None)


def checkpoint_of(directory: str | Path, workload: str) -> Path:
    """The checkpoint of a workload's query."""
    return Path(directory) / "checkpoints" / workload


class _Supervised:
    """One query, started again whenever it fails."""

    def __init__(self, session: SparkSession, subject: Subject, name: str) -> None:
        self.session = session
        self.subject = subject
        self.name = name
        self.query: StreamingQuery | None = None
        self.left = False

    def start(self, files_a_batch: int = 20, **trigger: Any) -> StreamingQuery | None:
        """Start the query. What pgonce refuses already here, as the table is now, is a failure like any other."""
        workload = WORKLOADS[self.name]
        checkpoint = checkpoint_of(self.subject.directory, self.name)
        place = Place(self.subject.urls[self.name], workload.table, str(checkpoint))
        can_wait = self.name in self.subject.can_wait
        tasks = waiting_when_told(str(self.subject.sign(f"tasks-{self.name}"))) if can_wait else None
        self.query = None
        try:
            self.query = workload.start(Stream(self.session, self.subject.source, trigger, files_a_batch, tasks), place)
        except PgonceError as refused:
            self.note("failed", str(refused))
            time.sleep(_AFTER_REFUSAL_SECONDS)
        else:
            self.note("started", "")
        return self.query

    def look_after(self) -> None:
        if self.left or (self.query is not None and self.query.isActive):
            return
        if self.query is not None:
            self.left = self.note_end()
        if not self.left:
            self.start(processingTime=_TRIGGER)

    def note_end(self) -> bool:
        """Write down how the query ended; tell whether another driver goes on with it."""
        assert self.query is not None
        text = str(self.query.exception() or "")
        another = another_driver(text) is not None
        self.note("left" if another else "failed", text)
        return another

    def finish(self) -> None:
        """
        Run it over all that is left, however many tries that takes.

        In real time a query has no end, and is told to finish when all its rows are there.
        """
        if self.query is not None:
            with suppress(Exception):
                self.query.stop()
        if WORKLOADS[self.name].in_real_time:
            return
        for _ in range(10):
            # What is left may be a good deal, where faults have kept it waiting.
            query = self.start(files_a_batch=500, availableNow=True)
            if query is None:
                continue
            with suppress(StreamingQueryException):
                query.awaitTermination()
                return
            self.note_end()
        raise RuntimeError(f"{self.name} does not come to its end")

    def note(self, event: str, text: str) -> None:
        codes = list(dict.fromkeys(_CODE.findall(text)))
        line = {"time": time.time(), "workload": self.name, "event": event, "codes": codes, "text": text[:4000]}
        with self.subject.diary.open("a") as diary:
            diary.write(json.dumps(line) + "\n")


def main(subject: Subject) -> None:
    """Look after all queries until the sign ``finish`` is there, then bring each to its end."""
    lower_thresholds(Path(subject.directory))
    session = started_session("pgonce-chaos", subject.settings)
    queries = [_Supervised(session, subject, name) for name in subject.urls]
    while not subject.sign("finish").exists():
        if subject.sign("revive").exists():
            subject.sign("revive").unlink()
            for query in queries:
                query.left = False
        for query in queries:
            query.look_after()
        time.sleep(_PAUSE_SECONDS)
    for query in queries:
        query.finish()
    session.stop()


if __name__ == "__main__":
    main(Subject(**json.loads(sys.argv[1])))
