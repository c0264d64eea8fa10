"""
Read all that the ledger has of one query and sink, in one statement: for what is read again and again.

Runs where a user or a program asks: the shell, a screen, a page. Invariant: it only reads, each list has a bound, and
no statement of another session is shown, which may have values of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, ScalarSelect, Select, column, desc, func, literal_column, select, text

from ..ledger.session import reading
from ..ledger.tables import dead_letters, writers
from .dead_letters import StoredLetter, letters_of
from .ends import lag_of
from .failures import StoredFailure, failures_of
from .in_json import from_json, time_of, with_times
from .read_stored import WRITERS, as_newest, batches_of, progress_of, stored_batch, stored_writer
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
_SESSIONS = """
SELECT jsonb_agg(to_jsonb(s)) FROM (
    SELECT a.pid, a.state, a.xact_start AS since,
           CASE WHEN a.wait_event_type NOT IN ('Client', 'Activity') THEN a.wait_event_type || ': ' || a.wait_event END
               AS waits_on,
           CASE WHEN a.wait_event_type = 'Lock' THEN (
               SELECT jsonb_agg(jsonb_build_object('pid', o.pid, 'application', nullif(o.application_name, ''),
                                                   'user', o.usename, 'state', o.state, 'since', o.xact_start)
                                ORDER BY o.xact_start)
               FROM pg_stat_activity AS o WHERE o.pid = ANY (pg_blocking_pids(a.pid))) END AS blockers
    FROM pg_stat_activity AS a
    WHERE a.datname = current_database() AND a.application_name = ANY (
        ARRAY(SELECT 'pgonce ' || h.run_id FROM pgonce.heartbeats AS h WHERE h.query_id = :query_id
              UNION SELECT 'pgonce ' || w.run_id FROM pgonce.writers AS w WHERE w.query_id = :query_id))
    ORDER BY a.xact_start NULLS LAST, a.pid LIMIT 20
) AS s
"""
_LETTER_CODES = f"""
SELECT json_object_agg(c.code, c.letters ORDER BY c.letters DESC, c.code) FROM (
    SELECT d.code, count(*) AS letters
    FROM (SELECT code FROM pgonce.dead_letters WHERE query_id = :query_id AND sink_name = :sink_name
          ORDER BY batch_id DESC LIMIT {_MOST_COUNTED}) AS d
    GROUP BY d.code ORDER BY letters DESC, d.code LIMIT 50
) AS c
"""


def read_details(url: str, query_id: str, sink_name: str | None, newest: int = 10, **others: Any) -> QueryDetails:
    """
    What :func:`query_details` gives, with its arguments, over a connection of its own.

    :raises ConnectError: if Postgres cannot be reached; LedgerError, if the ledger cannot be read.
    """
    with reading(url) as connection:
        return query_details(connection, query_id, sink_name, newest, **others)


def query_details(
    connection: Connection,
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
    """
    statement = _statement(query_id, sink_name, newest, letters, with_rows=with_rows, code=code)
    found = connection.execute(statement, {"query_id": query_id, "sink_name": sink_name}).mappings().one()
    writer = next((stored_writer(with_times(StoredWriter, row)) for row in found["writer"] or ()), None)
    heard = next(
        (as_newest({**row, "progress_at": time_of(row["progress_at"])}) for row in found["progress"] or ()), None
    )
    return QueryDetails(
        writer,
        [stored_batch(with_times(StoredBatch, row)) for row in found["batches"] or ()],
        lag_of(writer, heard, datetime.now(timezone.utc)) if writer else (),
        [from_json(StoredFailure, row) for row in found["failures"] or ()],
        [_session(row) for row in found["sessions"] or ()],
        [from_json(StoredLetter, row) for row in found["letters"] or ()],
        found.get("codes") or {},
    )


# To make it takes longer (8 ms) than Postgres to answer it, and the same query is read again and again.
@lru_cache(maxsize=64)
def _statement(
    query_id: str, sink_name: str | None, newest: int, letters: int, *, with_rows: bool, code: str | None
) -> Select[Any]:
    sink = sink_name or ""
    wanted = letters_of(dead_letters, [(query_id, sink)], code=code, with_rows=with_rows)
    own = WRITERS.where(writers.c.query_id == query_id, writers.c.sink_name == sink)
    parts = {
        "writer": _as_json(own, "w"),
        "progress": _as_json(progress_of([query_id]).limit(1), "p"),
        "batches": _as_json(batches_of(query_id, [sink], newest), "b"),
        "failures": _as_json(failures_of(query_id, sink_name, newest), "f"),
        "letters": _as_json(wanted.order_by(desc(dead_letters.c.dead_letter_id)).limit(letters), "d"),
        "sessions": _scalar(_SESSIONS),
        **({"codes": _scalar(_LETTER_CODES)} if with_rows else {}),
    }
    return select(*(part.label(name) for name, part in parts.items()))


def _as_json(rows: Select[Any], name: str) -> ScalarSelect[Any]:
    """The rows as one list of objects, in their order."""
    return (
        select(func.jsonb_agg(func.to_jsonb(literal_column(name)))).select_from(rows.subquery(name)).scalar_subquery()
    )


def _scalar(statement: str) -> ScalarSelect[Any]:
    return text(statement).columns(column("found")).scalar_subquery()


def _session(row: Mapping[str, Any]) -> Session:
    values = with_times(Session, row)
    values["blockers"] = tuple(from_json(Blocker, each) for each in row["blockers"] or ())
    return Session(**values)
