"""
Find the query that the option ``replaces`` names: by its id, the beginning of its id, or its name.

Runs in the commit of a writer that the ledger does not know yet, inside its transaction. Invariant: a name never moves
on from a query that was replaced to the one that took its place. Both count, so a setting that was left in place is
ambiguous then, and is refused; with ``startOver`` it would otherwise delete the rows of the newer query.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, func, or_, select

from ..errors import NOTHING, OffsetsError
from ..verdict.facts import Batch
from .tables import writers

# Fewer characters of an id are probably something else that was mistyped.
LEAST_CHARACTERS = 4


def is_meant(given: str, query_id: str, query_name: str | None) -> bool:
    """Whether ``given`` is the query's id, at least four characters with which that begins, or the query's name."""
    begins = len(given) >= LEAST_CHARACTERS and query_id.startswith(given)
    return begins or given in (query_id, query_name)


def meant_by(given: str, query_id: ColumnElement[str], query_name: ColumnElement[str | None]) -> ColumnElement[bool]:
    """:func:`is_meant` as a condition in SQL."""
    begins = [func.starts_with(query_id, given)] if len(given) >= LEAST_CHARACTERS else []
    return or_(query_id == given, query_name == given, *begins)


def replaced_query_in_tx(connection: Connection, batch: Batch, given: str) -> str:
    """
    The id of the query that is to be replaced: one that has published into this sink.

    What names none of them is returned as it is given; the batch is then refused, because no query has that id.

    :raises OffsetsError: QUERY_AMBIGUOUS.
    """
    found = connection.execute(
        select(writers.c.query_id, writers.c.query_name, writers.c.replaced_by, writers.c.updated_at)
        .where(writers.c.sink_name == batch.sink_name, writers.c.last_batch_id.is_not(None))
        .where(writers.c.query_id != batch.query_id, meant_by(given, writers.c.query_id, writers.c.query_name))
        .order_by(writers.c.updated_at.desc())
    ).all()
    ids = [row.query_id for row in found]
    if given in ids or not ids:
        return given
    if len(ids) == 1:
        return ids[0]
    candidates = "; ".join(
        f"{row.query_id} ({row.query_name or 'no name'}, "
        + (f"replaced by {row.replaced_by})" if row.replaced_by else f"last batch at {row.updated_at:%Y-%m-%d %H:%M})")
        for row in found
    )
    raise OffsetsError(
        "QUERY_AMBIGUOUS",
        f"replaces={given} could be any of {len(ids)} queries that have written into sink {batch.sink_name!r}.",
        NOTHING,
        f"Set replaces to the id of one of them: {candidates}.",
    )
