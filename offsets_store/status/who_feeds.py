"""
Name the queries that feed a table, for an error that asks the user to choose one of them.

Runs in the planner's worker and on the driver, before the first batch. Invariant: it only helps an error that is raised
anyway; where Postgres or the ledger cannot be asked, nobody is named.
"""

from __future__ import annotations

from ..errors import PgonceError
from ..ledger.session import reading
from .read_stored import stored_writers
from .stored import StoredWriter


def who_feeds(url: str, table: str, sink_name: str | None = None) -> list[StoredWriter]:
    """The living writers of a sink or of a table, whose name may lack its schema; none if they cannot be read."""
    try:
        with reading(url) as connection:
            known = stored_writers(connection)
    except PgonceError:
        return []
    return [
        writer
        for writer in known
        if writer.batch_id is not None and writer.replaced_by is None and writer.retired_at is None
        if writer.sink_name == sink_name
        or any(name == table or name.endswith(f".{table}") for name in (writer.sink_name, *(writer.targets or {})))
    ]
