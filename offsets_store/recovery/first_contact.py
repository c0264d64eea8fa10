"""
What will the sinks say to a query that the ledger does not know?

Pure: runs in the command ``pgonce doctor``. Invariant: the verdict comes from the function that the commit uses. A
checkpoint tells neither to which sink the query will write nor what its name is, and so the answer says that it does
not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import uuid4

from ..verdict.decide import PUBLISH, Verdict, decide
from ..verdict.facts import Batch, Ledger, Remedies
from ..verdict.refused_batch import refusal
from ..verdict.rivals import Neighbour, rivals_of, what_speaks_against
from .next_start import NextStart, begins_at
from .stopped_query import NO_QUERY_ID, CheckpointFacts, side_log_number

ANY_SINK = "*"
"""The name that stands for every sink that is not named."""


@dataclass(frozen=True)
class FirstContact:
    """
    What one sink will say to the first batch: ``says`` is that in words, and ``remedy`` what to do about a refusal.

    ``is_certain`` is False where it depends on what no checkpoint says: the query's name, or the folders that it reads.
    ``knows_the_place`` is True where a query with its checkpoint at the same location has fed this sink.
    """

    sink_name: str
    verdict: Verdict
    says: str
    remedy: str = ""
    is_certain: bool = True
    knows_the_place: bool = False


def first_contacts(
    checkpoint: CheckpointFacts,
    fed: Mapping[str, tuple[Neighbour, ...]],
    start: NextStart,
    sink_name: str | None,
    query_name: str | None,
) -> list[FirstContact]:
    """
    What each sink will say to which the query may write.

    :param fed: the living queries of each sink.
    :param sink_name: the sink that it will write to; None where that is unknown.
    """
    if start.batch_id > 0:
        batch = _batch(checkpoint, start, sink_name or ANY_SINK, query_name)
        return [_contact(batch, (), is_named=True)]
    names = [*sorted(fed), ANY_SINK] if sink_name is None else [sink_name]
    return [
        _contact(_batch(checkpoint, start, name, query_name), fed.get(name, ()), is_named=query_name is not None)
        for name in names
    ]


def _batch(checkpoint: CheckpointFacts, start: NextStart, sink_name: str, query_name: str | None) -> Batch:
    entry = checkpoint.offsets.get(start.batch_id) if start.runs_again else None
    begins = begins_at(checkpoint, start)
    return Batch(
        query_id=checkpoint.query_id or NO_QUERY_ID,
        sink_name=sink_name,
        run_id=str(uuid4()),
        batch_id=start.batch_id,
        attempt=uuid4(),
        offset_log=entry.text if entry else None,
        previous_offset_log=None,
        start=begins,
        end=entry.offsets if entry else begins,
        stateful=checkpoint.is_stateful,
        query_name=query_name,
        checkpoint_location=checkpoint.location,
    )


def _contact(batch: Batch, neighbours: tuple[Neighbour, ...], *, is_named: bool) -> FirstContact:
    ledger = Ledger(rivals=rivals_of(batch, neighbours, None))
    verdict = decide(ledger, batch, Remedies())
    if verdict not in PUBLISH:
        error = refusal(verdict, ledger, batch, Remedies())
        knows = any(other.checkpoint_location == batch.checkpoint_location for other in neighbours)
        may_prove = bool(neighbours) and all(_may_be_apart(batch, other) for other in neighbours)
        says = error.what + (" But it is NEW if the query is proven to read something else." if may_prove else "")
        return FirstContact(batch.sink_name, verdict, says, error.remedy, not may_prove, knows)
    names = sorted({other.query_name for other in neighbours if other.query_name})
    if names and not is_named:
        says = f"{verdict.value}; but FOREIGN if the query has the name of one that feeds it: {', '.join(names)}"
        return FirstContact(batch.sink_name, verdict, says, is_certain=False)
    return FirstContact(batch.sink_name, verdict, verdict.value)


def _may_be_apart(batch: Batch, other: Neighbour) -> bool:
    """Whether the query may prove, when it runs, that it reads something else: its checkpoint does not say it all."""
    if not what_speaks_against(batch, other):
        return True
    reads_files = all(side_log_number(offset) is not None for offset in (batch.end or {}).values())
    is_open = batch.end is None or (reads_files and other.reads is not None and not other.reads.partitions)
    return is_open and other.reads is not None and not what_speaks_against(batch, other, doubt_counts=False)
