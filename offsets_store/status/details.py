"""
Read all that the ledger has of one query and sink.

Runs where a user or a program asks: the shell, a page. Invariant: it only reads, in one snapshot, each list has a
bound, and no statement of another session is shown, which may have values of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from sqlalchemy import Connection, text

from ..ledger.session import reading
from ..ledger.tables import writers
from .dead_letters import StoredLetter, as_letters, letters_of
from .ends import lag_of
from .failures import StoredFailure, failures_of
from .read_stored import WRITERS, as_stored, newest_batches, newest_progress
from .stored import PartitionLag, StoredBatch, StoredWriter

_MOST_COUNTED = 10_000


@dataclass(frozen=True)
class Blocker:
    """A session for which a session of the query waits; ``since`` is when its transaction began."""

    pid: int
    application: str | None
    user: str | None
    state: str | None
    since: datetime | None

    def __str__(self) -> str:
        return f"pid {self.pid}, {self.application or 'no application name'}, user {self.user or '?'}"


@dataclass(frozen=True)
class Session:
    """
    A session of the query in Postgres, whose transaction began ``since``.

    ``waits_on`` is what Postgres says that it waits on, but for its client. ``blockers`` hold the lock for which it
    waits.
    """

    pid: int
    state: str | None
    since: datetime | None
    waits_on: str | None
    blockers: tuple[Blocker, ...]


@dataclass(frozen=True)
class QueryDetails:
    """
    What the ledger has of one query and sink, the newest first; ``writer`` is None if it has published nothing.

    ``letter_codes`` counts its dead letters by code, if that was asked for.
    """

    writer: StoredWriter | None = None
    batches: Sequence[StoredBatch] = ()
    partitions: Sequence[PartitionLag] = ()
    failures: Sequence[StoredFailure] = ()
    sessions: Sequence[Session] = ()
    letters: Sequence[StoredLetter] = ()
    letter_codes: Mapping[str, int] | None = None


# Whom a session waits for is asked only of those that wait, because Postgres stops all lock traffic to answer.
_SESSIONS = text("""
SELECT a.pid, a.state, a.xact_start AS since,
       CASE WHEN a.wait_event_type NOT IN ('Client', 'Activity') THEN a.wait_event_type || ': ' || a.wait_event END
           AS waits_on,
       CASE WHEN a.wait_event_type = 'Lock' THEN pg_blocking_pids(a.pid) ELSE '{}' END AS waits_for
FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND a.application_name = ANY (
    ARRAY(SELECT 'pgonce ' || h.run_id FROM pgonce.heartbeats AS h WHERE h.query_id = :query_id
          UNION SELECT 'pgonce ' || w.run_id FROM pgonce.writers AS w WHERE w.query_id = :query_id))
ORDER BY a.xact_start NULLS LAST, a.pid LIMIT 20
""")
_BLOCKERS = text("""
SELECT pid, nullif(application_name, '') AS application, usename AS "user", state, xact_start AS since
FROM pg_stat_activity WHERE pid = ANY (:pids) ORDER BY xact_start
""")
_LETTER_CODES = text(f"""
SELECT d.code, count(*) AS letters
FROM (SELECT code FROM pgonce.dead_letters WHERE query_id = :query_id AND sink_name = :sink_name
      ORDER BY batch_id DESC LIMIT {_MOST_COUNTED}) AS d
GROUP BY d.code ORDER BY letters DESC, d.code LIMIT 50
""")


def read_details(
    url: str,
    query_id: str,
    sink_name: str | None,
    newest: int = 10,
    *,
    letters: int = 10,
    with_rows: bool = False,
    code: str | None = None,
) -> QueryDetails:
    """
    What the ledger has of this query and sink; empty if it has nothing.

    :param sink_name: None for a query that failed before its sink was known.
    :param newest: how many batches and failures, at most.
    :param letters: how many dead letters, at most; of one ``code``, if it is given.
    :param with_rows: whether to read the rows of dead letters, and to count them by code.
    :raises ConnectError: if Postgres cannot be reached; LedgerError, if the ledger cannot be read.
    """
    sink = sink_name or ""
    wanted = letters_of([(query_id, sink)], code=code, with_rows=with_rows, newest=letters)
    asked = {"query_id": query_id, "sink_name": sink}
    with reading(url) as connection:
        own = as_stored(connection, WRITERS.where(writers.c.query_id == query_id, writers.c.sink_name == sink))
        heard = newest_progress(connection, [query_id]).get(query_id)
        codes = connection.execute(_LETTER_CODES, asked).all() if with_rows else ()
        return QueryDetails(
            own[0] if own else None,
            newest_batches(connection, own, newest) if own else [],
            lag_of(own[0], heard, datetime.now(timezone.utc)) if own else (),
            failures_of(connection, query_id, sink_name, newest),
            _sessions(connection, query_id),
            as_letters(connection, wanted),
            {row.code: row.letters for row in codes},
        )


def _sessions(connection: Connection, query_id: str) -> list[Session]:
    found = connection.execute(_SESSIONS, {"query_id": query_id}).all()
    pids = [pid for row in found for pid in row.waits_for]
    blockers = [Blocker(**row) for row in connection.execute(_BLOCKERS, {"pids": pids}).mappings()] if pids else []
    return [
        Session(row.pid, row.state, row.since, row.waits_on, tuple(one for one in blockers if one.pid in row.waits_for))
        for row in found
    ]
