"""
How did a query last write into its tables?

Runs in the commands ``pgonce doctor`` and ``pgonce check``. Invariant: it only reads, and leaves what the record means
to those who write rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from ..errors import LedgerError
from ..ledger.neighbours import IS_LIVING
from ..ledger.session import reading
from ..ledger.tables import writers


@dataclass(frozen=True)
class LastWritten:
    """
    One sink of a query: its last batch, and how that was written into each table, by the table's qualified name.

    ``tables`` is empty where no batch has recorded it.
    """

    sink_name: str
    batch_id: int
    tables: Mapping[str, Any]


def last_written(url: str, query_id: str) -> list[LastWritten]:
    """
    What the ledger has of each living sink of the query; nothing where there is no ledger.

    :raises LedgerError: where the ledger cannot be read.
    """
    found = select(writers.c.sink_name, writers.c.last_batch_id, writers.c.written_as).where(
        writers.c.query_id == query_id, IS_LIVING
    )
    try:
        with reading(url) as connection:
            rows = connection.execute(found.order_by(writers.c.sink_name)).all()
    except LedgerError as error:
        if error.code == "NO_LEDGER":
            return []
        raise
    return [LastWritten(row.sink_name, row.last_batch_id, _tables(row.written_as)) for row in rows]


def _tables(written_as: Any) -> Mapping[str, Any]:
    tables = written_as.get("tables") if isinstance(written_as, Mapping) else None
    return tables if isinstance(tables, Mapping) else {}
