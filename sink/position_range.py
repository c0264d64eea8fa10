"""
Do the positions that rows carry lie in the range that their batch reads?

Pure: runs in the commit worker and on the driver. Invariant: columns that hold something else than Kafka's positions
are refused before a row could be dropped by them.
"""

from __future__ import annotations

from offsets_store.errors import NOTHING
from offsets_store.facts import Batch
from offsets_store.positions import Span, places
from sink.errors import EncodingError


def refuse_outside(span: Span, batch: Batch) -> None:
    """
    Compare the places of some of a batch's rows with its range, as far as that is known.

    :raises EncodingError: naming the first partition whose rows say that they come from elsewhere.
    """
    after = places(span.next)
    # Where Spark writes down some batches only, an earlier batch's end is still a bound.
    begins, ends = places(batch.start or batch.resumes_at), places(batch.end)
    for place, first in places(span.first).items():
        last = after[place] - 1
        begin = begins.get(place, 0)
        end = ends.get(place, 0 if batch.end is not None else last + 1)
        if first < begin or last >= end:
            _, topic, partition = place
            raise EncodingError(
                "POSITION_OUTSIDE",
                f"Rows say that they are records {first} to {last} of partition {partition} of topic {topic!r}, where "
                f"the batch reads from {begin}" + (f" and ends before {end}." if batch.end is not None else " on."),
                NOTHING,
                "Name the columns that hold topic, partition and offset as the Kafka source gives them, unchanged.",
            )
