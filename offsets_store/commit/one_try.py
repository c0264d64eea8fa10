"""
One try to publish a batch: all its rows and its offsets in one transaction, or nothing.

Runs in the commit worker, in a receiver, or in the foreachBatch function on the driver. Invariant: the batch is
recorded in the transaction that writes its rows, and it is done only when COMMIT has answered COMMIT.

The steps, in this order:

1. begin, in a session of the try's own: ``begun_transaction``
2. lock the writer's row, and read the ledger under the lock: ``lock_writer_in_tx``
3. decide what the batch is, and refuse it if it may be neither published nor skipped: ``decide``, ``refusal``
4. publish the rows: ``_publish_in_tx``
5. record the batch: ``_record_in_tx``
6. COMMIT, in the round trip of step 5: ``committing``

For a batch that is skipped, ``_skip`` stands for steps 4 to 6.

``_decided_transaction`` takes steps 1 to 3. A batch job (:mod:`~pgonce.offsets_store.commit.batch_job`) has the same
steps, with a key in place of the writer's row; what is the same within a step is in
:mod:`~pgonce.offsets_store.commit.one_transaction`. Whether another try follows is decided in
:mod:`~pgonce.offsets_store.commit.retrying`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from ..ledger import record
from ..ledger.lock import (
    AskedWriter,
    LockedWriter,
    ask_for_writer,
    close_acceptances_in_tx,
    is_accepted_in_tx,
    lock_writer_in_tx,
    of_unknown_in_tx,
    one_first_contact_in_tx,
)
from ..ledger.published import Published, WrittenTables, compared_with_earlier
from ..offsets import Offsets
from ..postgres.connect import driver_connection
from ..postgres.lock_watch import LockWatch
from ..postgres.search_path import leave_in_tx
from ..postgres.translate import ledger_gone
from ..verdict.decide import (
    ACCEPTABLE,
    PUBLISH,
    SKIP,
    Verdict,
    accepted_positions,
    beside_rivals,
    decide,
    stored_positions,
)
from ..verdict.facts import Batch, PlannedBatch
from ..verdict.refused_batch import refusal
from .one_transaction import begun_transaction, committing
from .report import notify_in_tx
from .settings import CommitSettings
from .transaction_state import TransactionState, as_it_began_in_tx, has_failed, refuse_when_it_ends
from .work import Done, NameSink, Outcome, Work


@dataclass(frozen=True)
class Try:
    """One transaction for one batch, with the writer's row locked and the ledger read."""

    settings: CommitSettings
    connection: Connection
    batch: Batch
    began: TransactionState
    locked: LockedWriter
    verdict: Verdict


def publish_or_skip(
    settings: CommitSettings, planned: PlannedBatch, work: Work[Batch], watch: LockWatch, outcome: Outcome
) -> Verdict:
    """
    Publish or skip the batch in one transaction; the verdict says which.

    :raises PgonceError: if the batch is refused, or could not be committed.
    :raises psycopg.Error: what Postgres says; :mod:`~pgonce.offsets_store.commit.retrying` knows what may be
        tried again.
    """
    with _decided_transaction(settings, planned, work.name_sink, watch, outcome) as transaction:
        if transaction.verdict in PUBLISH:
            with watch.looking(transaction.began.backend_pid, may_end=False):
                stored = _stored_positions(transaction)
                published, tables = _publish_in_tx(transaction, work, stored, outcome)
                outcome.sent = published
                with committing(transaction.connection, transaction.began, outcome):
                    _record_in_tx(transaction, published, tables, stored)
            _note_commit(transaction, outcome)
        else:
            _skip(transaction, outcome)
    return transaction.verdict


def ask_or_skip(
    settings: CommitSettings, planned: PlannedBatch, name_sink: NameSink, watch: LockWatch, outcome: Outcome
) -> Verdict:
    """
    Skip the batch if it is proven to be published. Otherwise write nothing: the verdict is the answer.

    :raises: as :func:`publish_or_skip`.
    """
    with _decided_transaction(settings, planned, name_sink, watch, outcome) as transaction:
        if transaction.verdict in SKIP:
            _skip(transaction, outcome)
    return transaction.verdict


@contextmanager
def _decided_transaction(
    settings: CommitSettings, planned: PlannedBatch, name_sink: NameSink, watch: LockWatch, outcome: Outcome
) -> Iterator[Try]:
    """
    Begin a transaction, lock the writer, read the ledger and decide. What the block does not commit is rolled back.

    :raises RefusedBatch: for a batch that is neither to be published nor to be skipped.
    """

    def ask_ledger(connection: Connection, sink_name: str | None) -> AskedWriter | None:
        # A watch has to know the session before that waits for the lock.
        return None if watch.armed else ask_for_writer(connection, planned, sink_name)

    with begun_transaction(settings, planned.run_id, name_sink, outcome, ask_ledger) as begun:
        connection, began = begun.connection, begun.state
        batch = planned.into(begun.sink.name, begun.sink.tables)
        outcome.sink_name = batch.sink_name
        with outcome.asking_ledger(), watch.looking(began.backend_pid, may_end=True):
            locked = lock_writer_in_tx(connection, batch, settings.remedies.replaces, begun.asked)
        verdict = decide(locked.ledger, batch, settings.remedies)
        if verdict in ACCEPTABLE and locked.has_acceptances:
            with outcome.on_ledger():
                is_accepted = is_accepted_in_tx(connection, locked.writer_id, batch.batch_id)
            verdict = Verdict.ACCEPTED if is_accepted else verdict
        if verdict not in PUBLISH | SKIP:
            _refuse_forgotten(settings.url, batch, verdict)
            raise refusal(verdict, locked.ledger, batch, settings.remedies)
        yield Try(settings, connection, batch, began, locked, verdict)


def _stored_positions(transaction: Try) -> Offsets | None:
    if transaction.verdict is Verdict.ACCEPTED:
        return accepted_positions(transaction.locked.ledger, transaction.batch)
    return stored_positions(transaction.locked.ledger, transaction.settings.remedies)


def _publish_in_tx(
    transaction: Try, work: Work[Batch], stored: Offsets | None, outcome: Outcome
) -> tuple[Published, WrittenTables]:
    if work.sealed:
        refuse_when_it_ends(transaction.connection)
        with outcome.on_ledger():
            record.seal_in_tx(transaction.connection, transaction.locked, transaction.batch)
    below = None if transaction.verdict is Verdict.NEW else stored
    work.ready_in_tx(transaction.connection)
    published = work.publish(transaction.connection, transaction.batch, below)
    writer, now = transaction.locked.ledger.writer, published.targets or {}
    # The batches of a function may have written to no table so far.
    is_first = writer is None or (work.sealed and not writer.targets and bool(now))
    if is_first and not has_failed(transaction.connection):
        replaced = {name: now.get(name) for name, how in published.written_as.items() if how.replaces_all}
        with outcome.on_ledger():
            if work.sealed:
                _refuse_rivals_in_tx(transaction, now)
            if replaced:
                _refuse_rivals_in_tx(transaction, replaced, replaces_all=True)
    pinned = transaction.settings.pin_table
    tables = compared_with_earlier(transaction.batch, writer, now, pinned=pinned, is_one_table=work.is_one_table)
    return published, tables


def _refuse_rivals_in_tx(transaction: Try, tables: Mapping[str, int | None], *, replaces_all: bool = False) -> None:
    """
    Judge the first batch that writes again, with what is known only once it has written: a function's tables, or that
    all rows of a table gave way to those of the batch.

    :raises CommitError: TRANSACTION_ENDED, if the function has ended the transaction; SETTINGS_CHANGED.
    """
    connection, remedies = transaction.connection, transaction.settings.remedies
    is_known = transaction.locked.ledger.writer is not None
    if is_known:
        # An earlier batch has taken the place of that query.
        remedies = replace(remedies, replaces=None)
    batch = replace(transaction.batch, tables=tables, replaces_all=replaces_all)
    with as_it_began_in_tx(connection, transaction.began):
        one_first_contact_in_tx(connection, batch)
        ledger = of_unknown_in_tx(connection, batch, remedies.replaces)
    verdict = (beside_rivals if is_known else decide)(ledger, batch, remedies)
    if verdict not in PUBLISH:
        raise refusal(verdict, ledger, batch, remedies)
    leave_in_tx(driver_connection(connection))


def _record_in_tx(transaction: Try, published: Published, tables: WrittenTables, stored: Offsets | None) -> None:
    connection, locked, batch = transaction.connection, transaction.locked, transaction.batch
    replaces, retained = transaction.settings.remedies.replaces, transaction.settings.retain_batches
    record.record_batch_in_tx(connection, locked, batch, published, tables, stored=stored, retain_batches=retained)
    if locked.has_acceptances:
        needed = transaction.verdict is Verdict.ACCEPTED
        close_acceptances_in_tx(connection, locked.writer_id, needed=needed)
    if locked.ledger.writer is None and replaces:
        record.replace_writer_in_tx(connection, locked, batch, replaces)
    notify_in_tx(
        connection,
        transaction.settings.notify_channel,
        published,
        query_id=batch.query_id,
        query_name=batch.query_name,
        sink=batch.sink_name,
        generation=record.generation_of(locked, batch),
        batch_id=batch.batch_id,
    )


def _skip(transaction: Try, outcome: Outcome) -> None:
    settings, connection, batch = transaction.settings, transaction.connection, transaction.batch
    with committing(connection, transaction.began, outcome):
        if transaction.verdict is Verdict.REPLAY:
            record.record_replay_in_tx(connection, transaction.locked, batch)
        elif transaction.verdict is Verdict.ADOPTED:
            adopted, tables, retained = Published(0, "adopted"), WrittenTables(), settings.retain_batches
            record.record_batch_in_tx(
                connection, transaction.locked, batch, adopted, tables, stored=None, retain_batches=retained
            )
    _note_commit(transaction, outcome)


def _note_commit(transaction: Try, outcome: Outcome) -> None:
    url, batch, verdict = transaction.settings.url, transaction.batch, transaction.verdict
    _done[url, batch.query_id, batch.sink_name] = batch.batch_id
    is_skipped = verdict in SKIP and verdict is not Verdict.LANDED
    outcome.done = Done(verdict.name, batch.sink_name, None if is_skipped else outcome.sent, is_skipped)


# The last batch that this process has committed, by connection string, query and sink.
_done: dict[tuple[str, str, str], int] = {}


def has_committed(url: str) -> bool:
    """Whether this process has committed a batch by this connection string."""
    # A copy, because other threads commit meanwhile.
    return any(used == url for used, _, _ in tuple(_done))


def _refuse_forgotten(url: str, batch: Batch, verdict: Verdict) -> None:
    """:raises LedgerError: if this process has committed for a writer that the ledger does not know."""
    done = _done.get((url, batch.query_id, batch.sink_name))
    if verdict is Verdict.UNKNOWN and done is not None:
        raise ledger_gone(
            f"This process has committed batch {done} of query {batch.query_id} into sink {batch.sink_name!r}; now "
            f"Spark runs batch {batch.batch_id}, and the ledger (schema pgonce) has no record of that query"
        )
