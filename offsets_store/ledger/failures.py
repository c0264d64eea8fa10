"""
Keep what went wrong in ``pgonce.failures``, for people who do not have the driver's log.

Runs where a batch, its plan or a recovery has failed: in a session of its own, after the transaction was rolled back.
Invariants: nothing is raised here, the error that is kept gets no other form, and it waits for at most
:data:`LONGEST_SECONDS`. No value of a row is kept: of an error of Postgres only its SQLSTATE and the names that it
gives, and of ours a sentence only if it is made of names, ids and offsets, as what it tells to do always is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Literal

import psycopg

from ..errors import PgonceError
from ..log_lines import one_line, scrub
from ..postgres.connect import connect
from ..postgres.search_path import SET_OURS
from ..postgres.translate import without_values

_log = logging.getLogger("pgonce")

LONGEST_SECONDS = 2.0
KEPT_A_QUERY = 100
_LONGEST_MESSAGE = 1000

SeenBy = Literal["commit", "planner", "recovery", "listener"]


@dataclass(frozen=True)
class Failed:
    """What failed, and who has seen it. What is not known is None."""

    seen_by: SeenBy
    query_id: str
    query_name: str | None = None
    sink_name: str | None = None
    run_id: str | None = None
    batch_id: int | None = None


# In families whose sentences may show rows, these codes name only tables, columns, constraints, types and counts.
_NAMES_ONLY = frozenset({
    "BAD_TABLE_NAME", "COLUMN_GENERATED", "COLUMN_MISSING", "COLUMN_TWICE", "COLUMN_UNKNOWN",
    "DELETE_ACTION", "DISK_FULL", "KEY_UNKNOWN", "KEY_UNTRACEABLE", "NESTED_KEY", "NO_KEYS", "NO_UNIQUE_KEY",
    "NULL_KEYS", "NULL_ORDER", "ORDER_TYPE", "ROWS_NOT_WRITTEN", "SOFT_COLUMN", "STATEMENT_FAILED",
    "SYNCHRONOUS_COMMIT_OFF", "TARGET_CHANGED", "TARGET_HAS_RULES", "TARGET_MISSING", "TARGET_NOT_A_TABLE",
    "TARGET_NOT_DURABLE", "TARGET_NOT_PERMITTED", "TOMBSTONES_DIFFER", "TRANSACTION_ENDED", "TRIGGER_CHANGED_ROWS",
    "TYPE_MISMATCH",
})  # fmt: skip
NOT_KEPT = "The sentence is not kept here, because it may show values of rows. The driver's log has it."


def kept_words(error: PgonceError) -> str:
    """What happened, without the value of any row."""
    if error.kept is not None:
        return error.kept
    return error.what if error.shows_no_values or error.code in _NAMES_ONLY else NOT_KEPT


@contextmanager
def failures_kept(url: str, failed: Failed | Callable[[], Failed]) -> Iterator[None]:
    """
    Keep an error of ours that leaves the block.

    Other errors are not kept: a query that a person stops in the middle of a batch raises them as well.

    :param failed: what failed; or a function that finds it out, as by reading a checkpoint, within the same bounds.
    """
    try:
        yield
    except PgonceError as error:
        keep_failure(url, failed, error.code, kept_words(error), error.sink_name, remedy=error.remedy)
        raise


def keep_failure(
    url: str,
    failed: Failed | Callable[[], Failed],
    code: str,
    message: str,
    sink_name: str | None = None,
    *,
    remedy: str | None = None,
    is_ours: bool = True,
) -> None:
    """
    Keep a failure, as far as it can be done in :data:`LONGEST_SECONDS`; nothing is raised.

    :param failed: as in :func:`failures_kept`.
    :param sink_name: the sink, if the error knows it and ``failed`` does not.
    :param remedy: what to do; of an error of ours, that is made of names and options.
    :param is_ours: whether the error is one of pgonce. Another one is kept only of a query that has published.
    """

    def row() -> dict[str, object]:
        found = failed if isinstance(failed, Failed) else failed()
        return row_of(found, code, message, sink_name, remedy=remedy, is_ours=is_ours)

    # In a thread, because connecting, fetching a password or reading a checkpoint may take longer.
    keeping = threading.Thread(target=_keep, args=[url, row], name="pgonce-failure", daemon=True)
    try:
        keeping.start()
    except RuntimeError as error:
        _log.info(_NOT_KEPT, error)
        return
    keeping.join(LONGEST_SECONDS)


def row_of(
    failed: Failed,
    code: str,
    message: str,
    sink_name: str | None = None,
    *,
    remedy: str | None = None,
    is_ours: bool = True,
) -> dict[str, object]:
    """What :func:`keep_in_tx` stores; the arguments are those of :func:`keep_failure`."""
    return {
        **asdict(failed),
        "query_name": _text(failed.query_name),
        "sink_name": _text(failed.sink_name or sink_name),
        "code": _text(code),
        "message": _text(scrub(message)),
        "remedy": remedy and _text(scrub(remedy)),
        "is_ours": is_ours,
    }


def keep_in_tx(session: psycopg.Connection, row: Mapping[str, object]) -> None:
    """
    Store a failure, or count it once more, and drop old ones of its query; our search_path must be in force.

    :raises psycopg.Error: what Postgres says.
    """
    session.execute(_KEEP, row)
    session.execute(_PRUNE, {"query_id": row["query_id"], "kept": KEPT_A_QUERY})


def _text(text: str | None) -> str | None:
    return None if text is None else one_line(text)[:_LONGEST_MESSAGE]


_NOT_KEPT = "a failure could not be kept in pgonce.failures: %s"


def _keep(url: str, row: Callable[[], Mapping[str, object]]) -> None:
    try:
        described = row()
        with connect(url, connect_timeout=2) as session:
            session.execute(BEGIN_BRIEFLY)
            keep_in_tx(session, described)
    except psycopg.ProgrammingError:
        if url not in _said:
            _said.add(url)
            _log.info(
                "failures are not kept, because the ledger lacks pgonce.failures as it is now, or the role may not "
                "write it: run `pgonce init --role` as the ledger's owner"
            )
    except psycopg.Error as error:
        _log.info(_NOT_KEPT, without_values(error))
    except Exception as error:  # noqa: BLE001 (it must not end in the place of the error that is kept)
        _log.info(_NOT_KEPT, error.code if isinstance(error, PgonceError) else type(error).__name__)


# The connection strings of ledgers in which failures cannot be kept.
_said: set[str] = set()


BEGIN_BRIEFLY = (
    "SET TRANSACTION READ WRITE; SET LOCAL statement_timeout = 1500; "
    f"SET LOCAL lock_timeout = 1000; SET LOCAL synchronous_commit = off; {SET_OURS}"
)
"""Begins a transaction that does not wait for standbys or for the disk, and only briefly for anything else."""
_KEEP = """
INSERT INTO pgonce.failures AS f (query_id, query_name, sink_name, run_id, batch_id, code, message, remedy, seen_by)
SELECT %(query_id)s, %(query_name)s, %(sink_name)s, %(run_id)s, %(batch_id)s, %(code)s, %(message)s, %(remedy)s,
    %(seen_by)s
-- What ended a run is known from the place where it was raised, if that could keep it.
WHERE (%(is_ours)s OR EXISTS (SELECT FROM pgonce.writers AS w WHERE w.query_id = %(query_id)s))
AND (%(seen_by)s <> 'listener' OR NOT EXISTS (
    SELECT FROM pgonce.failures AS o
    WHERE o.query_id = %(query_id)s AND o.seen_by <> 'listener' AND o.seen_by <> 'recovery'
        AND (o.run_id = %(run_id)s OR (o.run_id IS NULL AND o.last_at > coalesce((
            SELECT h.started_at FROM pgonce.heartbeats AS h
            WHERE h.query_id = %(query_id)s AND h.run_id = %(run_id)s), clock_timestamp() - interval '1 minute')))))
ON CONFLICT (query_id, coalesce(sink_name, ''), coalesce(run_id, ''), coalesce(batch_id, -1), code)
DO UPDATE SET attempts = f.attempts + 1, last_at = clock_timestamp(), message = excluded.message,
    remedy = excluded.remedy,
    query_name = coalesce(excluded.query_name, f.query_name), seen_by = excluded.seen_by
"""
_PRUNE = """
DELETE FROM pgonce.failures
WHERE query_id = %(query_id)s AND failure_id IN (
    SELECT failure_id FROM pgonce.failures WHERE query_id = %(query_id)s
    ORDER BY last_at DESC, failure_id DESC OFFSET %(kept)s)
"""
