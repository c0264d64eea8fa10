"""
What people do to a writer by hand, and what a recovery does to it: one row in the ledger each, with its reason.

Runs in the command ``pgonce``, and on the driver before a start. Invariant: the row and what it tells of are one
transaction, under the locks that a commit takes; nothing here publishes a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import sqlalchemy.exc
from sqlalchemy import ColumnElement, Connection, Row, func, insert, select, update

from pgonce.offsets_store.errors import ConfigurationError, RecoveryError
from pgonce.offsets_store.ledger.migrations import require_ledger
from pgonce.offsets_store.ledger.tables import batches, interventions, writers
from pgonce.offsets_store.postgres.bounds import enter_in_tx
from pgonce.offsets_store.postgres.connect import checked_out
from pgonce.offsets_store.postgres.lock_watch import LockWatch
from pgonce.offsets_store.postgres.translate import driver_error, ledger_error
from pgonce.offsets_store.recovery.refused_recovery import NOTHING
from pgonce.offsets_store.recovery.stopped_query import SinkFacts

RECOVERY = "recovery-"
"""Begins the run id that a recovery gives to a writer, so that the run before it is refused."""

# A commit that is under way holds the row for as long as it takes; that query runs, and must be stopped first.
_LOCK_SECONDS = 10.0


def fence(
    url: str,
    sinks: Sequence[SinkFacts],
    kind: str,
    stands_at: int | None,
    details: dict[str, Any],
    entry: str | None = None,
) -> str:
    """
    Take the sinks from the runs that own them, and note why: those are refused from now on. The new owner's id.

    :param entry: the text of ``offsets/`` to record with each sink's newest batch, where none is recorded.
    :raises RecoveryError: RECOVERY_RUNNING, where a sink has moved since it was read.
    """
    recovery = f"{RECOVERY}{uuid4()}"
    with writing(url) as connection:
        # In the order of their keys: two recoveries at once must not hold what the other needs.
        for sink in sorted(sinks, key=lambda sink: sink.writer_id):
            _lock_unmoved(connection, sink, url)
            connection.execute(update(writers).where(writers.c.writer_id == sink.writer_id).values(run_id=recovery))
            note(connection, sink, kind, batch_id=stands_at, details={**details, "recovery": recovery})
            if entry is not None:
                connection.execute(update(batches).where(*_newest_unwritten(sink)).values(offset_log=entry))
    return recovery


def _newest_unwritten(sink: SinkFacts) -> tuple[ColumnElement[bool], ...]:
    return (
        batches.c.writer_id == sink.writer_id,
        batches.c.generation == sink.generation,
        batches.c.batch_id == sink.last_batch_id,
        batches.c.offset_log.is_(None),
    )


def _lock_unmoved(connection: Connection, sink: SinkFacts, url: str) -> None:
    row = _lock(connection, sink, url)
    if row is None or (row.run_id, row.generation, row.last_batch_id) != (
        sink.run_id,
        sink.generation,
        sink.last_batch_id,
    ):
        raise moved(sink.sink_name)


def _lock(connection: Connection, sink: SinkFacts, url: str) -> Row[Any] | None:
    """The writer's row, taken from a session whose client is gone as a commit takes it: after a wait in vain."""
    wanted = select(writers).where(writers.c.writer_id == sink.writer_id).with_for_update()
    try:
        with connection.begin_nested():
            return connection.execute(wanted).one_or_none()
    except sqlalchemy.exc.DBAPIError as error:
        if not _is_locked(error):
            raise
    watch = LockWatch(url, _LOCK_SECONDS, armed=True)
    pid = connection.execute(select(func.pg_backend_pid())).scalar_one()
    try:
        with watch.looking(pid, may_end=True):
            return connection.execute(wanted).one_or_none()
    except sqlalchemy.exc.DBAPIError as error:
        if not _is_locked(error):
            raise
        raise RecoveryError(
            "RECOVERY_RUNNING",
            f"The query seems to run: the row of its sink {sink.sink_name!r} in the ledger is locked; {watch.holders}.",
            NOTHING,
            "Stop the query everywhere, or end that session if it is not the query's, and try again.",
        ) from error


def _is_locked(error: sqlalchemy.exc.DBAPIError) -> bool:
    return isinstance(driver_error(error), psycopg.errors.LockNotAvailable)


def moved(what: str, data: str = NOTHING) -> RecoveryError:
    """Something that was read has changed before it could be written."""
    return RecoveryError(
        "RECOVERY_RUNNING",
        f"The query seems to run, or somebody else recovers it: {what} has moved since it was looked at.",
        data,
        "Stop the query everywhere and try again.",
    )


def note(connection: Connection, sink: SinkFacts, kind: str, **values: Any) -> None:
    """Record an intervention."""
    connection.execute(insert(interventions).values(writer_id=sink.writer_id, kind=kind, **values))


def accept(url: str, sink: SinkFacts, batch_id: int, reason: str) -> None:
    """
    Let batch ``batch_id`` of a sink through, once, whatever the ledger thinks of it.

    :raises ConfigurationError: NO_REASON.
    :raises RecoveryError: WRITER_GONE, ALREADY_ACCEPTED.
    """
    refuse_no_reason(reason)
    refuse_gone(sink)
    refuse_accepted(sink, batch_id)
    with writing(url) as connection:
        _lock_unmoved(connection, sink, url)
        note(connection, sink, "accept", batch_id=batch_id, reason=reason.strip())


def retire(url: str, sink: SinkFacts, reason: str | None) -> None:
    """
    Say that a sink will publish no more; if its query comes back, it is refused.

    :raises RecoveryError: WRITER_GONE.
    """
    refuse_gone(sink)
    put_out_of_the_way(url, [sink], "retire", reason)


def put_out_of_the_way(url: str, sinks: Sequence[SinkFacts], kind: str, reason: str | None) -> None:
    """Let the sinks publish no more, and be no rivals of new queries."""
    with writing(url) as connection:
        for sink in sorted(sinks, key=lambda sink: sink.writer_id):
            _lock_unmoved(connection, sink, url)
            gone = update(writers).where(writers.c.writer_id == sink.writer_id)
            connection.execute(gone.values(retired_at=func.clock_timestamp()))
            note(connection, sink, kind, batch_id=sink.last_batch_id, reason=reason)


def refuse_no_reason(reason: str) -> None:
    """:raises ConfigurationError: NO_REASON, for a blank one."""
    if not reason.strip():
        raise ConfigurationError(
            "NO_REASON",
            "No reason is given.",
            NOTHING,
            "Say why in --reason: the ledger keeps it for those who come after you.",
        )


def refuse_accepted(sink: SinkFacts, batch_id: int) -> None:
    """:raises RecoveryError: ALREADY_ACCEPTED, where this batch has been let through and has not come yet."""
    if batch_id in sink.accepted:
        raise RecoveryError(
            "ALREADY_ACCEPTED",
            f"Batch {batch_id} of sink {sink.sink_name!r} has been accepted already, and has not come yet.",
            NOTHING,
            "Start the query.",
        )


def refuse_gone(sink: SinkFacts) -> None:
    """:raises RecoveryError: WRITER_GONE, for a sink that was retired or replaced."""
    if sink.is_living:
        return
    how = f"replaced by query {sink.replaced_by}" if sink.replaced_by else f"retired or forgotten at {sink.retired_at}"
    raise RecoveryError(
        "WRITER_GONE",
        f"The sink {sink.sink_name!r} of this query was {how}, and publishes no more.",
        NOTHING,
        "`pgonce status` shows which queries there are.",
    )


@contextmanager
def writing(url: str) -> Iterator[Connection]:
    """A transaction on the ledger, under our search_path; the ledger must be there."""
    try:
        with checked_out(url) as connection, connection.begin():
            raw = connection.connection.driver_connection
            assert isinstance(raw, psycopg.Connection)  # noqa: S101 (narrows the type)
            enter_in_tx(raw, _LOCK_SECONDS)
            require_ledger(raw)
            yield connection
    except (psycopg.Error, sqlalchemy.exc.SQLAlchemyError) as error:
        cause = driver_error(error)
        if cause is None:
            raise
        if isinstance(cause, psycopg.errors.LockNotAvailable):
            raise moved("a row of it in the ledger, which a commit has locked,") from error
        raise ledger_error(cause, "writing the ledger") from error
