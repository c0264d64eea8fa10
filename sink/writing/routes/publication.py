"""
What is the work of a commit: to write rows into one table, or each into the one that it chooses?

Made in the commit worker, in the receiver, or on the driver. Invariant: whichever it is, the rows and the record of the
batch are in one transaction.
"""

from __future__ import annotations

from sqlalchemy import Connection

from pgonce.offsets_store.commit.work import NamedSink, Work
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.offsets.compare import Offsets
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.verdict.facts import Batch

from ...options.destination import Destination
from ...options.routes import Routes
from ..publish import publication
from ..rows import Rows
from .listed_tables import Listed, listed_tables
from .publish_routes import publish_routes_in_tx


def publication_into(sink_name: str | None, where: Destination | Routes, rows: Rows) -> Work:
    """The work of a commit that writes ``rows``; the sink has the name that the user gave it, or one of its own."""
    return _routed(sink_name, where, rows) if isinstance(where, Routes) else publication(sink_name, where, rows)


def _routed(sink_name: str | None, routes: Routes, rows: Rows) -> Work:
    # The tables as they were found when the sink was named, for the same transaction.
    listed: Listed | None = None

    def name_sink(connection: Connection) -> NamedSink:
        nonlocal listed
        listed = listed_tables(driver_connection(connection), routes)
        tables = {table.qualified_name: table.oid for table in listed.values()}
        return NamedSink(sink_name or routes.sink_name, tables)

    def publish(connection: Connection, batch: Batch, stored: Offsets | None) -> Published:
        chosen = rows.not_stored(stored)
        result = publish_routes_in_tx(driver_connection(connection), routes, chosen, listed, batch)
        return Published(
            result.rows,
            rows.transport,
            rows.count() - result.gathered,
            result.targets,
            result.counts,
            result.tables,
            notes=result.notes,
            written_as=result.written_as,
        )

    return Work(name_sink, publish, has_several_tables=True)
