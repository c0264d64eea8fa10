"""
``foreachBatch``, made exactly-once: a writer for one table, and a decorator for a function of one's own.

Runs on the driver, in the thread that calls the function. Invariant: the batch's identity and offsets come from the
running query itself, never from what the caller passes or the function remembers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame
from sqlalchemy import Connection

from offsets_store.verdict import SKIP, Batch, Remedies
from sink.arrow_rows import collected_rows
from sink.attempt import Published, Work
from sink.committer import commit_batch
from sink.publish import publication
from sink.running_query import batch_of
from sink.settings import Mode, bad_option, commit_settings, destination, refuse_unstorable
from sink.transaction import BatchTransaction

BatchFunction = Callable[[DataFrame, int], None]


class PostgresBatchWriter:
    """
    Writes every batch into one table: ``df.writeStream.foreachBatch(PostgresBatchWriter(url, table="events"))``.

    :param url: a libpq URI or key=value string; empty for libpq's environment.
    :param table: target table, as SQL names it (``events``, ``sales.orders``, ``app."Orders"``).
    :param mode: ``append``; ``upsert`` by ``keys``; ``complete`` replaces the table's rows with every batch.
    :param keys: columns that tell rows apart; with ``create_table`` also the primary key.
    :param order_by: for doubled keys in one batch: the greatest value of this column wins.
    :param sink_name: tells two writers of one query apart; the qualified table by default.
    :param create_table: create the table from the frame's schema where it is missing.
    :param retain_batches: how many batch records the ledger keeps, at least 100.
    :param adopt_checkpoint: id of the first batch to publish of a query that has run with another sink.
    :param replaces: id of the query whose place this one takes.
    :param independent: this query has nothing to do with others that feed the table.
    :param lock_timeout: seconds to wait for a lock before looking who holds it.
    :param retry_timeout: seconds to go on trying after errors that pass.
    :raises ConfigurationError: at once, for arguments that cannot work.
    """

    def __init__(
        self,
        url: str = "",
        *,
        table: str,
        mode: Mode = "append",
        keys: Sequence[str] = (),
        order_by: str | None = None,
        sink_name: str | None = None,
        create_table: bool = False,
        retain_batches: int = 1000,
        adopt_checkpoint: int | None = None,
        replaces: str | None = None,
        independent: bool = False,
        lock_timeout: float = 30.0,
        retry_timeout: float = 120.0,
    ) -> None:
        self._settings = commit_settings(
            url,
            Remedies(adopt_checkpoint, replaces, independent),
            retain_batches=retain_batches,
            lock_timeout=lock_timeout,
            retry_timeout=retry_timeout,
        )
        self._destination = destination(table, mode, _names(keys), order_by, create_table=create_table)
        refuse_unstorable(sink_name=sink_name)
        self._sink_name = sink_name

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Publish one batch, or skip it where it is proven to be published; what foreachBatch calls."""
        batch = batch_of(frame, batch_id)
        # Before the transaction, and for a replay too: a stateful query fails where its frame is not run.
        rows = collected_rows(frame)
        commit_batch(self._settings, batch, publication(self._sink_name, self._destination, rows, "arrow"))


def transactional_batch(
    url: str = "",
    *,
    name: str,
    retain_batches: int = 1000,
    adopt_checkpoint: int | None = None,
    replaces: str | None = None,
    independent: bool = False,
    lock_timeout: float = 30.0,
    retry_timeout: float = 120.0,
) -> Callable[[Callable[[DataFrame, BatchTransaction], None]], BatchFunction]:
    """
    Make a function ``(batch, tx)`` into one for ``foreachBatch``: all that it does through ``tx`` is one transaction.

    A proven replay does not call it. ``name`` is the sink's name in the ledger: keep it when the function changes. The
    other parameters are those of :class:`PostgresBatchWriter`.

    :raises ConfigurationError: at once, for arguments that cannot work.
    """
    if not name:
        raise bad_option("NO_SINK_NAME", "transactional_batch needs a name.", 'Give it one: name="orders".')
    refuse_unstorable(name=name)
    settings = commit_settings(
        url,
        Remedies(adopt_checkpoint, replaces, independent),
        retain_batches=retain_batches,
        lock_timeout=lock_timeout,
        retry_timeout=retry_timeout,
    )

    def decorate(function: Callable[[DataFrame, BatchTransaction], None]) -> BatchFunction:
        @functools.wraps(function)
        def write_batch(frame: DataFrame, batch_id: int) -> None:
            def publish(connection: Connection, batch: Batch) -> Published:
                transaction = BatchTransaction(connection, batch)
                function(frame, transaction)
                return Published(transaction.rows, "function")

            work = Work(lambda _: name, publish, sealed=True)
            verdict = commit_batch(settings, batch_of(frame, batch_id), work)
            if verdict in SKIP:
                # A stateful query fails where a batch's frame is never run.
                frame.write.format("noop").mode("overwrite").save()

        return write_batch

    return decorate


def _names(keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(key.strip() for key in keys.split(",")) if isinstance(keys, str) else tuple(keys)
