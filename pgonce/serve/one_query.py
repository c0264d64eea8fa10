"""
Read one query for its page: its batches, partitions, sessions and dead letters.

Runs in ``pgonce serve``, while a browser shows the page. Invariant: it only reads, in one snapshot, and each list has a
bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import Connection, desc, text

from pgonce.offsets_store.errors import NotFoundError
from pgonce.offsets_store.ledger.session import reading
from pgonce.offsets_store.ledger.tables import dead_letters
from pgonce.offsets_store.status.dead_letters import StoredLetter, as_letters, letters_of
from pgonce.offsets_store.status.ends import lag_of
from pgonce.offsets_store.status.read_stored import newest_batches, newest_progress, writers_of
from pgonce.offsets_store.status.stored import PartitionLag, StoredBatch, StoredWriter

MOST_BATCHES = 120
MOST_LETTERS = 100
_MOST_COUNTED = 10_000


@dataclass(frozen=True)
class Session:
    """
    A session of the query in Postgres. ``blockers`` are the sessions that it waits for.

    What they run is left out, because statements may show rows.
    """

    pid: int
    state: str
    since: datetime | None
    waits_on: str | None
    blockers: Sequence[str]


@dataclass(frozen=True)
class OneQuery:
    """What the ledger has of one query and sink; ``writer`` is None if it has published nothing."""

    writer: StoredWriter | None
    batches: Sequence[StoredBatch]
    partitions: Sequence[PartitionLag]
    sessions: Sequence[Session]
    letters: Sequence[StoredLetter]
    letter_codes: Mapping[str, int]


def read_query(url: str, query_id: str, sink: str | None, code: str | None) -> OneQuery:
    """
    Read a query by its whole id.

    :param code: show only dead letters with this code.
    :raises ConnectError: if Postgres cannot be reached; LedgerError, if the ledger cannot be read.
    """
    with reading(url, whole=True) as connection:
        try:
            chosen = writers_of(connection, query_id, sink)
        except NotFoundError:
            return OneQuery(None, (), (), (), (), {})
        writer = chosen[0]
        batches = newest_batches(connection, [writer], MOST_BATCHES)
        newest = newest_progress(connection, [writer.query_id]).get(writer.query_id)
        wanted = letters_of(dead_letters, [writer], code=code).order_by(desc(dead_letters.c.dead_letter_id))
        return OneQuery(
            writer,
            batches,
            lag_of(writer, newest, datetime.now(timezone.utc)),
            _sessions(connection, writer),
            as_letters(connection, wanted.limit(MOST_LETTERS)),
            _letter_codes(connection, writer),
        )


_SESSIONS = text("""
SELECT a.pid, coalesce(a.state, '') AS state, a.xact_start, a.wait_event_type, a.wait_event,
    array(SELECT format('pid %s, %s, user %s', o.pid, coalesce(nullif(o.application_name, ''), 'no application name'),
                        coalesce(o.usename, '?'))
          FROM pg_stat_activity AS o WHERE o.pid = ANY (pg_blocking_pids(a.pid))) AS blockers
FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND a.application_name = ANY (
    ARRAY(SELECT 'pgonce ' || h.run_id FROM pgonce.heartbeats AS h WHERE h.query_id = :query_id
          UNION SELECT 'pgonce ' || w.run_id FROM pgonce.writers AS w WHERE w.query_id = :query_id))
ORDER BY a.xact_start NULLS LAST, a.pid
LIMIT 20
""")


def _sessions(connection: Connection, writer: StoredWriter) -> list[Session]:
    return [
        Session(row.pid, row.state, row.xact_start, _waits_on(row), tuple(row.blockers))
        for row in connection.execute(_SESSIONS, {"query_id": writer.query_id})
    ]


def _waits_on(row: Any) -> str | None:
    # A session that waits for its client does not wait.
    if row.wait_event_type in (None, "Client", "Activity"):
        return None
    return f"{row.wait_event_type}: {row.wait_event}"


_LETTER_CODES = text(f"""
SELECT d.code, count(*) AS letters
FROM (SELECT code FROM pgonce.dead_letters WHERE query_id = :query_id AND sink_name = :sink_name
      ORDER BY batch_id DESC LIMIT {_MOST_COUNTED}) AS d
GROUP BY d.code ORDER BY letters DESC, d.code LIMIT 50
""")


def _letter_codes(connection: Connection, writer: StoredWriter) -> dict[str, int]:
    found = connection.execute(_LETTER_CODES, {"query_id": writer.query_id, "sink_name": writer.sink_name})
    return {row.code: row.letters for row in found}
