"""
A query that is kept running as a supervisor would keep it, with a diary of how each of its runs ended.

Runs in: drivers of the laboratory and of the trial. Invariant: a query that fails is started again as it is, one that
was told that another driver goes on is left stopped, and every end is written down.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from psycopg import Error as PostgresError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

from pgonce import PgonceError

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


def another_driver(ending: str) -> str | None:
    """The words that tell of another driver; None where there are none."""
    return next((word for word in (*_OUR_WORDS, *SPARKS_WORDS) if word in ending), None)


@dataclass(frozen=True)
class SupervisedJob:
    """What a driver runs, as its argument: ``name`` is the driver's, ``directory`` that of its files."""

    name: str
    directory: str

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
        """An empty file by which driver and whoever started it speak: ``finish``, ``revive``."""
        return Path(self.directory) / name

    def to_json(self) -> str:
        """As the driver's argument."""
        return json.dumps(asdict(self))


class SupervisedQuery:
    """
    One query, started again whenever it fails.

    :param start: starts it, with the arguments that :meth:`start` gets.
    :param diary: a file of JSON objects, a line for each start and each end.
    """

    def __init__(self, name: str, start: Callable[..., StreamingQuery], diary: Path) -> None:
        self.name = name
        self._start = start
        self._diary = diary
        self.query: StreamingQuery | None = None
        self.left = False

    def start(self, **how: Any) -> StreamingQuery | None:
        """Start the query. What is refused already here, as things are now, is a failure like any other."""
        self.query = None
        try:
            self.query = self._start(**how)
        except (PgonceError, PySparkException, PostgresError, Py4JJavaError) as refused:
            self.note("failed", str(refused))
            time.sleep(_AFTER_REFUSAL_SECONDS)
        else:
            self.note("started", "")
        return self.query

    def look_after(self, **how: Any) -> None:
        """Start it again if it has ended, unless another driver goes on with it."""
        if self.left or (self.query is not None and self.query.isActive):
            return
        if self.query is not None:
            self.left = self.note_end()
        if not self.left:
            self.start(**how)

    def revive(self) -> None:
        """Take it up again where it was left to another driver, which is gone."""
        if self.left:
            self.left = False
            self.query = None

    def note_end(self) -> bool:
        """Write down how the query ended; tell whether another driver goes on with it."""
        assert self.query is not None
        text = str(self.query.exception() or "")
        another = another_driver(text) is not None
        self.note("left" if another else "failed", text)
        return another

    def finish(self, tries: int, **how: Any) -> bool:
        """Stop it, and run it over all that is left, in so many tries; False if each of them has failed."""
        if self.query is not None:
            with suppress(Exception):
                self.query.stop()
        for _ in range(tries):
            query = self.start(**how, availableNow=True)
            if query is None:
                continue
            with suppress(StreamingQueryException):
                query.awaitTermination()
                return True
            self.note_end()
        return False

    def note(self, event: str, text: str) -> None:
        """Add a line to the diary."""
        codes = list(dict.fromkeys(_CODE.findall(text)))
        line = {"time": time.time(), "workload": self.name, "event": event, "codes": codes, "text": text[:4000]}
        with self._diary.open("a") as diary:
            diary.write(json.dumps(line) + "\n")
