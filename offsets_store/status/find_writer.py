"""
Find the writer that a person means by a query's name, its id, or the beginning of its id.

Pure: runs wherever the ledger is read. Invariant: an answer is the only one possible; else an OffsetsError lists all. A
writer that was replaced is never taken for the one that took its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UNCHANGED, OffsetsError
from ..ledger.named_query import is_meant
from ..offsets.compare import same
from .stored import StoredWriter


def find_writers(writers: Sequence[StoredWriter], query: str, sink: str | None = None) -> list[StoredWriter]:
    """
    The writers of a query, by its id, the beginning of its id, or its name; with ``sink``, only that one.

    :raises OffsetsError: QUERY_NOT_FOUND, QUERY_AMBIGUOUS, SINK_NOT_FOUND.
    """
    found = [writer for writer in writers if writer.query_id == query] or _by_name(writers, query)
    if sink is None:
        return found
    chosen = [writer for writer in found if writer.sink_name == sink]
    if not chosen:
        raise OffsetsError(
            "SINK_NOT_FOUND",
            f"Query {query!r} has no sink {sink!r} in this ledger.",
            UNCHANGED,
            f"Its sinks are: {'; '.join(writer.sink_name for writer in found)}.",
        )
    return chosen


def the_writer(found: Sequence[StoredWriter], query: str) -> StoredWriter:
    """
    The only writer of a query.

    :raises OffsetsError: SINK_NEEDED.
    """
    if len(found) > 1:
        raise _sink_needed(found, query, "several sinks")
    return found[0]


def where_to_resume(found: Sequence[StoredWriter], query: str) -> StoredWriter:
    """
    A writer whose end is where the query may go on, for all its sinks.

    :raises OffsetsError: REPLACED, SINK_NEEDED.
    """
    living = [writer for writer in found if writer.replaced_by is None]
    if not living:
        successor = found[0].replaced_by
        raise OffsetsError(
            "REPLACED",
            f"Query {query!r} was replaced by query {successor}, which has continued from where it ended.",
            UNCHANGED,
            f"Ask for the offsets of {successor}.",
        )
    first = living[0]
    if any(not same(first.end_offsets, other.end_offsets) for other in living[1:]):
        raise _sink_needed(living, query, "several sinks that do not stand at the same offsets")
    return first


def _by_name(writers: Sequence[StoredWriter], name: str) -> list[StoredWriter]:
    named = [writer for writer in writers if is_meant(name, writer.query_id, writer.query_name)]
    # A query that took another's place usually has its name too; then only the new one can be meant.
    in_place = [writer for writer in named if writer.replaced_by is None]
    candidates = [writer for writer in in_place if writer.retired_at is None] or in_place or named
    ids = sorted({writer.query_id for writer in candidates})
    if len(ids) > 1:
        raise OffsetsError(
            "QUERY_AMBIGUOUS",
            f"{len(ids)} queries have the name {name!r}, or an id that begins so.",
            UNCHANGED,
            f"Give the id of one of them: {'; '.join(map(_described, candidates))}.",
        )
    if not ids:
        there = "; ".join(sorted({f"{writer.query_id} ({writer.query_name or 'no name'})" for writer in writers}))
        raise OffsetsError(
            "QUERY_NOT_FOUND",
            f"No query of this ledger has the name or id {name!r}, or an id that begins so.",
            UNCHANGED,
            f"It knows: {there}." if there else "It knows no query at all: nothing has been published yet.",
        )
    return [writer for writer in writers if writer.query_id == ids[0]]


def _sink_needed(found: Sequence[StoredWriter], query: str, what: str) -> OffsetsError:
    sinks = "; ".join(f"{writer.sink_name} (batch {writer.batch_id})" for writer in found)
    return OffsetsError(
        "SINK_NEEDED",
        f"Query {query!r} has {what}: {sinks}.",
        UNCHANGED,
        "Name one of them: sink=... in Python, --sink in the shell.",
    )


def _described(writer: StoredWriter) -> str:
    when = f"{writer.updated_at:%Y-%m-%d %H:%M}"
    return f"{writer.query_id} (sink {writer.sink_name}, last batch {writer.batch_id} at {when})"
