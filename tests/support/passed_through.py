"""
Pass rows through a function in Python on their way to the sink.

Runs in: the drivers of tests; the function itself runs in tasks. Invariant: rows, names and types stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame

Batches = Iterator[pa.RecordBatch]


def passed_through(tasks: Callable[[Batches], Batches], rows: DataFrame) -> DataFrame:
    """The same rows, by way of ``tasks``."""
    # mapInArrow cannot take a column whose name has a dot.
    plain = rows.toDF(*(f"c{number}" for number in range(len(rows.columns))))
    return plain.mapInArrow(tasks, plain.schema).toDF(*rows.columns)
