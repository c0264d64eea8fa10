"""
Where does the running query's batch begin and end, and when was it planned?

Runs on the driver, in the thread that called the foreachBatch function. Invariant: while that thread is in the
function, the query plans nothing, so the answers are of the batch that the function was called for.
"""

from __future__ import annotations

from typing import Any

import pyspark

# From PySpark 4.0 on, a query keeps what it knows of a batch in an object for each batch; before, in its own fields.
_HAS_CONTEXTS = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 0)


def planned_metadata(query: Any) -> Any:
    """Spark's ``OffsetSeqMetadata`` of the batch: when it was planned, and under which settings."""
    return _knows(query).offsetSeqMetadata()


def planned_start(query: Any) -> Any:
    """Spark's ``StreamProgress`` where the batch begins."""
    return _knows(query).startOffsets() if _HAS_CONTEXTS else query.committedOffsets()


def planned_end(query: Any) -> Any:
    """Spark's ``StreamProgress`` where the batch ends."""
    return _knows(query).endOffsets() if _HAS_CONTEXTS else query.availableOffsets()


def _knows(query: Any) -> Any:
    return query.getLatestExecutionContext() if _HAS_CONTEXTS else query
