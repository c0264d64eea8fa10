"""
Check whether a query's tables would take another batch like its last one.

Runs in the commands ``pgonce doctor`` and ``pgonce check``. Invariant: it checks each table as the commit does, without
a lock; nothing of the record becomes part of a statement before it was checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg

from pgonce.offsets_store.errors import PgonceError, RecoveryError
from pgonce.offsets_store.log_lines import scrub
from pgonce.offsets_store.postgres.connect import connect
from pgonce.offsets_store.status.read_stored import LastWritten

from .bad_rows.recorded_destination import recalled_to_look
from .first_look import CONNECT_SECONDS, look_at_table

_BOUNDS = (
    "SELECT pg_catalog.set_config('statement_timeout', '10s', true), pg_catalog.set_config('lock_timeout', '2s', true)"
)


@dataclass(frozen=True)
class Looked:
    """
    One table of a sink, as the next commit will find it.

    ``refused`` is the error that the commit would raise, and ``unknown`` says why that could not be found out; both are
    None if it would raise none.
    """

    sink_name: str
    table: str
    batch_id: int
    refused: PgonceError | None = None
    unknown: str | None = None


def look_again(url: str, sinks: Sequence[LastWritten], *, of_this_role: bool) -> list[Looked]:
    """
    Look at each table of these sinks with the columns of its last batch.

    :param of_this_role: whether the session has the role that will write, so that its privileges count.
    :raises ConnectError: if Postgres cannot be reached.
    """
    if not any(sink.tables for sink in sinks):
        return list(_unrecorded(sinks))
    with connect(url, connect_timeout=CONNECT_SECONDS) as connection:
        connection.read_only, connection.deferrable = True, False
        found = [
            _look(connection, sink, name, record, of_this_role=of_this_role)
            for sink in sinks
            for name, record in sorted(sink.tables.items())
        ]
    return [*found, *_unrecorded(sinks)]


def _unrecorded(sinks: Sequence[LastWritten]) -> Iterator[Looked]:
    for sink in sinks:
        if not sink.tables:
            why = "no batch has recorded how its rows were written"
            yield Looked(sink.sink_name, sink.sink_name, sink.batch_id, unknown=why)


def _look(
    connection: psycopg.Connection, sink: LastWritten, name: str, record: object, *, of_this_role: bool
) -> Looked:
    try:
        destination, columns = recalled_to_look(record)
        connection.execute(_BOUNDS)
        look_at_table(connection, destination, columns, of_this_role=of_this_role)
    except RecoveryError as error:
        return Looked(sink.sink_name, name, sink.batch_id, unknown=error.what)
    except PgonceError as error:
        return Looked(sink.sink_name, name, sink.batch_id, refused=error)
    except psycopg.Error as error:
        said = scrub(" ".join((error.diag.message_primary or str(error)).split()))
        return Looked(sink.sink_name, name, sink.batch_id, unknown=f"Postgres says: {said}")
    finally:
        connection.rollback()
    return Looked(sink.sink_name, name, sink.batch_id)
