"""
How do a frame's rows come from a Spark Connect server?

Runs in: the Python worker that a Connect server starts for a foreachBatch function. Invariant: rows are taken as Arrow,
one record batch after the other, and never gathered into one table.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame


class ServerRows:
    """The operation that makes a frame's rows; it starts with the first look at them."""

    def __init__(self, frame: DataFrame) -> None:
        running = cast("Any", frame)
        self._client = running._session.client
        self._plan = running._plan.to_proto(self._client)
        self._observations = running._plan.observations
        self._tag = f"pgonce-{uuid.uuid4()}"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as they come; raises what Spark raises."""
        # A client keeps tags by thread.
        self._client.add_tag(self._tag)
        try:
            # Beside the rows it yields the schema. DataFrame.toArrow would gather all rows first.
            for part in self._client.to_table_as_iterator(self._plan, self._observations):
                if isinstance(part, pa.Table):
                    yield from part.to_batches()
        finally:
            self._client.remove_tag(self._tag)

    def raise_error(self) -> None:
        """Nothing more is known here than what :meth:`batches` has raised."""

    def cancel(self) -> None:
        """End the operation, and with it the stream of its rows."""
        # The server may be gone, and then there is nothing to end.
        with suppress(Exception):
            self._client.interrupt_tag(self._tag)
