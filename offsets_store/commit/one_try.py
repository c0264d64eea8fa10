"""
One try to publish a batch: all its rows and its offsets in one transaction, or nothing.

Runs in the commit worker, in a receiver, or in the foreachBatch function on the driver. Invariant: the batch is
recorded in the transaction that writes its rows, and it is done only when COMMIT has answered COMMIT.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import psycopg
import sqlalchemy.exc
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, event

from pgonce.offsets_store.commit.commit_watch import saying_why_it_waits
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.errors import NOTHING, CommitError
from pgonce.offsets_store.ledger import ledger, record
from pgonce.offsets_store.ledger.ledger import LockedWriter, TransactionState
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.ledger.record import Published
from pgonce.offsets_store.offsets.compare import Offsets
from pgonce.offsets_store.postgres.bounds import outlast_locks
from pgonce.offsets_store.postgres.connect import checked_out, driver_connection
from pgonce.offsets_store.postgres.lock_watch import LockWatch
from pgonce.offsets_store.postgres.one_round_trip import one_trip
from pgonce.offsets_store.postgres.search_path import leave_in_tx
from pgonce.offsets_store.postgres.translate import leaves_commit_unknown, ledger_gone
from pgonce.offsets_store.verdict.decide import (
    ACCEPTABLE,
    PUBLISH,
    SKIP,
    Verdict,
    accepted_positions,
    decide,
    stored_positions,
)
from pgonce.offsets_store.verdict.facts import Batch
from pgonce.offsets_store.verdict.refused_batch import refusal
from pgonce.offsets_store.verdict.targets import changed_targets, known_targets

_log = logging.getLogger("pgonce")


@dataclass(frozen=True)
class Question:
    """Asks what became of a batch. ``name_sink`` says inside the transaction which sink it is; nothing is published."""

    name_sink: Callable[[Connection], str]


@dataclass(frozen=True)
class Work(Question):
    """
    What one commit does: ``name_sink`` says which sink it is, ``publish`` writes the rows and says how many.

    ``publish`` is told below which positions rows are stored already (None: drop none). Both run inside the
    transaction, and again at every try. ``sealed`` is for work that runs SQL of the user.
    """

    publish: Callable[[Connection, Batch, Offsets | None], Published]
    sealed: bool = False


@dataclass
class Outcome:
    """
    What is known of all tries of one batch.

    It is ``unknown`` from the moment at which a COMMIT is sent until Postgres has answered it, or a later try has read
    the ledger under the lock on the writer's row. That try gets the lock only when the earlier transaction is over.
    """

    unknown: bool = False


def try_once(settings: CommitSettings, batch: Batch, work: Question, watch: LockWatch, outcome: Outcome) -> Verdict:
    """
    Publish or skip ``batch`` in one transaction; the verdict says which.

    A :class:`Question` publishes nothing. The verdict answers it: a batch that could be published is not there.

    :raises PgonceError: if the batch is refused, or could not be kept.
    :raises psycopg.Error: what Postgres says; :mod:`~pgonce.offsets_store.commit.retrying` knows what may be
        tried again.
    """
    application, replaces = application_name(batch.run_id), settings.remedies.replaces
    with checked_out(settings.url) as connection, _discarded_on_error(connection):
        outlast_locks(driver_connection(connection), settings.url, settings.lock_timeout)
        ensure_ledger(settings.url, driver_connection(connection))
        # Before our search_path is in force, because a table is found along the user's.
        batch = replace(batch, sink_name=work.name_sink(connection))
        began = ledger.begin_in_tx(connection, application, settings.lock_timeout)
        _refuse_lost_on_crash(began)
        with watch.looking(began.backend_pid, may_end=True):
            try:
                locked = ledger.lock_writer_in_tx(connection, batch, replaces)
            except ledger.SnapshotTooOldError:
                began = ledger.begin_again_in_tx(connection, batch.sink_name, application, settings.lock_timeout)
                locked = ledger.lock_writer_in_tx(connection, batch, replaces, sees_rivals=True)
        outcome.unknown = False
        verdict = decide(locked.ledger, batch, settings.remedies)
        if verdict in ACCEPTABLE and ledger.is_accepted_in_tx(connection, locked, batch):
            verdict = Verdict.ACCEPTED
        if verdict in PUBLISH:
            if not isinstance(work, Work):
                return verdict
            with watch.looking(began.backend_pid, may_end=False):
                _publish_in_tx(connection, settings, batch, work, locked, verdict, began)
        elif verdict in SKIP:
            _skip_in_tx(connection, settings, batch, verdict, locked)
        else:
            _refuse_forgotten(settings.url, batch, verdict)
            raise refusal(verdict, locked.ledger, batch, settings.remedies)
        with saying_why_it_waits(settings.url, began.backend_pid, batch):
            _commit(connection, outcome)
        _done[settings.url, batch.query_id, batch.sink_name] = batch.batch_id
        _log.info("batch %s of query %s into %s: %s", batch.batch_id, batch.query_id, batch.sink_name, verdict.name)
        return verdict


# The last batch that this process has committed, by connection string, query and sink.
_done: dict[tuple[str, str, str], int] = {}


def _refuse_forgotten(url: str, batch: Batch, verdict: Verdict) -> None:
    """:raises LedgerError: where this process has committed for a writer that the ledger does not know."""
    done = _done.get((url, batch.query_id, batch.sink_name))
    if verdict is Verdict.UNKNOWN and done is not None:
        raise ledger_gone(
            f"This process has committed batch {done} of query {batch.query_id} into sink {batch.sink_name!r}; now "
            f"Spark runs batch {batch.batch_id}, and the ledger (schema pgonce) has no record of that query"
        )


@contextmanager
def _discarded_on_error(connection: Connection) -> Iterator[None]:
    # The next try gets a new session. This one may be dead (SQLAlchemy does not see errors of psycopg's own COPY), or
    # have settings that an administrator has corrected since.
    try:
        yield
    except BaseException:
        # An explicit rollback, because a server notices a closed connection late and would keep the locks until then.
        with suppress(psycopg.Error, sqlalchemy.exc.SQLAlchemyError):
            driver_connection(connection).rollback()
        connection.invalidate()
        raise


def application_name(run_id: str) -> str:
    """The name of this run's sessions in ``pg_stat_activity``: 43 of at most 63 bytes."""
    return f"pgonce {run_id}"


def _publish_in_tx(
    connection: Connection,
    settings: CommitSettings,
    batch: Batch,
    work: Work,
    locked: LockedWriter,
    verdict: Verdict,
    began: TransactionState,
) -> None:
    accepted = verdict is Verdict.ACCEPTED
    stored = (
        accepted_positions(locked.ledger, batch) if accepted else stored_positions(locked.ledger, settings.remedies)
    )
    if work.sealed:
        event.listen(connection, "after_cursor_execute", _refuse_ended_transaction)
        record.seal_in_tx(connection, locked, batch)
    leave_in_tx(driver_connection(connection))
    published = work.publish(connection, batch, None if verdict is Verdict.NEW else stored)
    published = _compared_with_earlier_tables(settings, batch, work, locked, published)
    _refuse_broken_transaction(began, ledger.transaction_state_in_tx(connection))
    with one_trip(connection):
        record.record_batch_in_tx(
            connection, locked, batch, published, stored=stored, retain_batches=settings.retain_batches
        )
        ledger.close_acceptances_in_tx(connection, locked, batch)
        if locked.ledger.writer is None and settings.remedies.replaces:
            record.replace_writer_in_tx(connection, locked, batch, settings.remedies.replaces)
        # Deferred triggers of the user's tables run at COMMIT, under the user's search_path.
        leave_in_tx(driver_connection(connection))


def _compared_with_earlier_tables(
    settings: CommitSettings, batch: Batch, work: Work, locked: LockedWriter, published: Published
) -> Published:
    before = locked.ledger.writer.targets if locked.ledger.writer else None
    now = published.targets or {}
    changes = changed_targets(before, now, is_one_table=not work.sealed)
    if changes and settings.pin_table:
        raise CommitError(
            "TARGET_CHANGED",
            f"pinTable is set, and batch {batch.batch_id} would go into another table than those before it. "
            + " ".join(changes.values()),
            NOTHING,
            "If the table was replaced on purpose, start the query once with pinTable=false (pin_table=False): from "
            "that batch on, the new table is the one that counts.",
        )
    for change in changes.values():
        _log.warning("batch %s of query %s: %s", batch.batch_id, batch.query_id, change)
    known = known_targets(before, now, is_one_table=not work.sealed)
    return replace(published, targets=known, target_changes=changes)


def _skip_in_tx(
    connection: Connection, settings: CommitSettings, batch: Batch, verdict: Verdict, locked: LockedWriter
) -> None:
    if verdict is Verdict.REPLAY:
        record.record_replay_in_tx(connection, locked, batch)
    elif verdict is Verdict.ADOPTED:
        record.record_batch_in_tx(
            connection, locked, batch, Published(0, "adopted"), stored=None, retain_batches=settings.retain_batches
        )


def _commit(connection: Connection, outcome: Outcome) -> None:
    outcome.unknown = True
    try:
        # Not by SQLAlchemy, which hides the answer: COMMIT of a failed transaction answers ROLLBACK.
        tag = driver_connection(connection).execute("COMMIT").statusmessage
    except psycopg.Error as error:
        outcome.unknown = leaves_commit_unknown(error)
        raise
    outcome.unknown = False
    if tag != "COMMIT":
        raise CommitError(
            "ROLLED_BACK",
            f"Postgres answered {tag} to COMMIT: a statement of this transaction had failed, and its error was "
            "swallowed.",
            NOTHING,
            "Let errors of tx.execute and tx.connection out of your function, or wrap what may fail in a savepoint "
            "(tx.connection.begin_nested()).",
        )


def _refuse_lost_on_crash(state: TransactionState) -> None:
    if state.synchronous_commit == "off":
        raise CommitError(
            "SYNCHRONOUS_COMMIT_OFF",
            "synchronous_commit is off for this connection: Postgres would answer COMMIT before the rows are on disk, "
            "and a crash would lose batches that Spark believes done.",
            NOTHING,
            "Set synchronous_commit to on (or local) for this role or database, or in url: "
            "options=-csynchronous_commit=on.",
        )


def _refuse_broken_transaction(began: TransactionState, ended: TransactionState) -> None:
    _refuse_lost_on_crash(ended)
    if began.xid != ended.xid:
        raise _transaction_ended()


def _transaction_ended() -> CommitError:
    return CommitError(
        "TRANSACTION_ENDED",
        "The batch's transaction was ended by SQL inside the function (ROLLBACK or COMMIT), so that rows and offsets "
        "would no longer be one.",
        "Nothing that went through tx before was written, and the stored offsets have not moved; what the SQL then "
        "committed by itself is there.",
        "Remove transaction control from your SQL and from procedures it calls; use tx.connection.begin_nested() "
        "for what may fail.",
    )


def _refuse_ended_transaction(connection: Connection, *_: object) -> None:
    # Raised at once, before the next statement runs in a transaction of its own and perhaps is committed.
    if driver_connection(connection).info.transaction_status is TransactionStatus.IDLE:
        raise _transaction_ended()
