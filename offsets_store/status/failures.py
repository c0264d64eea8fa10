"""
Read what went wrong from ``pgonce.failures``, for people.

Runs where a user or a program asks. Invariant: it only reads.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import Connection, desc, func, or_, select, true

from ..ledger.tables import failures, writers
from ..ledger.writers import meant_by
from .read_stored import writers_of


@dataclass(frozen=True)
class StoredFailure:
    """
    Something that went wrong, as often as it was seen: one row of ``pgonce.failures``.

    ``code`` is that of an error of pgonce, or the class of Spark's error. ``message`` says what happened, without
    values of rows, and ``remedy`` what to do. ``seen_by`` is ``commit``, ``planner``, ``recovery`` or ``listener``.
    What was not known where the failure was seen is None.
    """

    query_id: str
    query_name: str | None
    sink_name: str | None
    run_id: str | None
    batch_id: int | None
    code: str
    message: str
    seen_by: str
    attempts: int
    first_at: datetime
    last_at: datetime
    remedy: str | None


_NAME = (
    select(writers.c.query_name)
    .where(writers.c.query_id == failures.c.query_id)
    .order_by(desc(writers.c.updated_at))
    .limit(1)
    .scalar_subquery()
)
FAILURES = select(
    func.coalesce(failures.c.query_name, _NAME).label("query_name"),
    *(failures.c[each.name] for each in fields(StoredFailure) if each.name != "query_name"),
).order_by(desc(failures.c.last_at), desc(failures.c.failure_id))
"""All failures, the newest first."""


def stored_failures(
    connection: Connection, since: datetime | None = None, query: str | None = None
) -> list[StoredFailure]:
    """
    What went wrong, the newest first.

    :param since: only what was seen at this time or later.
    :param query: only that of a query: its id, the beginning of its id, or its name.
    :raises OffsetsError: QUERY_NOT_FOUND, QUERY_AMBIGUOUS.
    """
    found = FAILURES
    if query is not None:
        found = found.where(failures.c.query_id.in_(_ids_meant_by(connection, query)))
    if since is not None:
        found = found.where(failures.c.last_at >= since)
    return [StoredFailure(**row) for row in connection.execute(found).mappings()]


def failures_of(connection: Connection, query_id: str, sink_name: str | None, limit: int) -> list[StoredFailure]:
    """The newest failures of a query and this sink, and of the whole query; those of all sinks if it is None."""
    of_sink = or_(failures.c.sink_name == sink_name, failures.c.sink_name.is_(None)) if sink_name else true()
    found = FAILURES.where(failures.c.query_id == query_id, of_sink).limit(limit)
    return [StoredFailure(**row) for row in connection.execute(found).mappings()]


def _ids_meant_by(connection: Connection, query: str) -> list[str]:
    # A query that has never published anything is in no other table.
    is_meant = meant_by(query, failures.c.query_id, failures.c.query_name)
    failed = connection.execute(select(failures.c.query_id).where(is_meant).distinct()).scalars().all()
    written = connection.execute(
        select(writers.c.query_id).where(meant_by(query, writers.c.query_id, writers.c.query_name)).distinct()
    ).scalars()
    return [*failed, *written] or [writer.query_id for writer in writers_of(connection, query, None)]
