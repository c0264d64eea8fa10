"""
Run a query to its end, expect its refusal, or set it back.

Runs in: pytest. Invariant: a test that runs a query here knows how it ended before its next line.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter
from support.fixtures.driver import Driver
from support.patience import PATIENCE_SECONDS


def finish(stream: DataStreamWriter) -> None:
    """Run a query over all there is, to its end."""
    query = stream.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_SECONDS), f"the query did not end in {PATIENCE_SECONDS:.0f} s"


def assert_refused(stream: DataStreamWriter, code: str) -> None:
    """Run a query, which must fail with an error of this code."""
    with pytest.raises(StreamingQueryException, match=rf"\[{code}\]"):
        finish(stream)


def run_elsewhere(frame: DataFrame, checkpoint: str) -> None:
    """Let the query run on its checkpoint without pgonce."""
    finish(frame.writeStream.format("noop").option("checkpointLocation", checkpoint))


def rewind(checkpoint: str) -> int:
    """Take the newest entry of ``commits/`` away, as if the driver had died before it: Spark runs that batch again."""
    folder = Path(checkpoint) / "commits"
    newest = max(int(file.name) for file in folder.glob("[0-9]*"))
    (folder / str(newest)).unlink()
    # A driver that was killed may have left none.
    (folder / f".{newest}.crc").unlink(missing_ok=True)
    return newest


def reasons(driver: Driver) -> list[str]:
    """Why queries of a driver ended, which none should."""
    return re.findall(r"ENDED .*?(?=\n\tat |\n=== Streaming Query|\Z)", driver.output(), re.DOTALL)
