"""
For a query that is new to the ledger, find the queries that may have written the rows that it is about to write.

Pure: runs in the commit, and in the command ``pgonce``. Invariant: a query that feeds the same sink or table is a
rival, unless both are proven to read different places (``reads``), and neither its name nor the location of its
checkpoint suggests that it is the same query with a new checkpoint.
"""

from __future__ import annotations

from .facts import Batch, Rival, Writer
from .reads import Reads, are_apart, reads_of, seen_in, shared


def rivals_of(
    batch: Batch, neighbours: tuple[Writer, ...], replaces: str | None, *, start_over: bool = False
) -> tuple[Rival, ...]:
    """
    The rivals of a query whose first batch this is, among the writers that feed the same sink or table.

    The query that it ``replaces`` is always among them.

    The first is the one that is most probably this query with its old checkpoint. If a query is replaced, doubt alone
    makes none of the others a rival, because they have worked at the same time as the replaced one and can do so with
    this one. For a query that starts over, every other query is a rival, because the rows of all of them would be
    deleted.
    """
    found = []
    for other in neighbours:
        sink = None if other.sink_name == batch.sink_name else other.sink_name
        # A replaced query may have fed one table by several sinks. With startOver, other queries that feed the table
        # are found after it is locked.
        if sink is not None and (start_over or other.query_id == replaces):
            continue
        shares = what_speaks_against(batch, other, doubt_counts=replaces is None)
        if other.query_id == replaces and not shares:
            shares = "named by replaces"
        if start_over and not shares:
            shares = "the same sink"
        if shares:
            found.append(Rival(other, shares, other_sink=sink, by_doubt=shares == _DOUBT))
    return tuple(sorted(found, key=lambda rival: (not rival.shares.startswith(_SAME_PLACE), rival.shares == _DOUBT)))


_SAME_PLACE = "the same checkpoint location"
_DOUBT = "nothing proves that it reads something else"


def what_speaks_against(batch: Batch, other: Writer, *, doubt_counts: bool = True) -> str:
    """The text that says why both queries may write the same rows; empty if it is proven that they do not."""
    reasons = []
    if batch.checkpoint_location and other.checkpoint_location == batch.checkpoint_location:
        reasons.append(f"{_SAME_PLACE} {batch.checkpoint_location}")
    if batch.query_name and other.query_name == batch.query_name:
        reasons.append(f"the same query name {batch.query_name!r}")
    # Older code does not record what is read; it only moves the offsets.
    theirs = (other.reads or Reads()).and_also(seen_in(other.stored_to, {}))
    reasons += shared(seen_in(batch.end, batch.folders), theirs)
    if doubt_counts and not reasons and not are_apart(reads_of(batch.end, batch.folders), other.reads and theirs):
        reasons.append(_DOUBT)
    return " and ".join(reasons)
