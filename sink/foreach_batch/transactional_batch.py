"""
``foreachBatch`` with the user's own function: whatever it writes is committed with the batch's offsets.

Runs on the driver, in the thread that calls the function. Invariant: the batch's identity and offsets come from the
running query itself, never from what the caller passes or the function remembers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import DataFrame
from sqlalchemy import Connection

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import LOCK_TIMEOUT_SECONDS, RETAINED_BATCHES
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import bad_option
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.offsets.compare import Offsets
from pgonce.offsets_store.postgres.backoff import RETRY_SECONDS
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.postgres.text import refuse_unstorable
from pgonce.offsets_store.verdict.decide import SKIP
from pgonce.offsets_store.verdict.facts import Batch

from ..border import calls_users_code
from ..options.hints import only_known_arguments
from ..positions import stored_already
from ..writing.first_batch import refuse_first_batch
from .batch_settings import batch_settings
from .transaction import BatchTransaction

BatchFunction = Callable[[DataFrame, int], None]


@only_known_arguments
def transactional_batch(
    url: str = "",
    *,
    name: str,
    password_from: str | None = None,
    pin_table: bool = False,
    position_columns: Sequence[str] = (),
    bootstrap_servers: str | None = None,
    kafka_options: Mapping[str, str] | None = None,
    notify_channel: str | None = None,
    checkpoint_location: str | None = None,
    retain_batches: int = RETAINED_BATCHES,
    adopt_checkpoint: int | None = None,
    replaces: str | None = None,
    independent: bool = False,
    lock_timeout: float = LOCK_TIMEOUT_SECONDS,
    retry_timeout: float = RETRY_SECONDS,
) -> Callable[[Callable[[DataFrame, BatchTransaction], None]], BatchFunction]:
    """
    Turn a function ``(batch, tx)`` into one for ``foreachBatch``: all that it does through ``tx`` is one transaction.

    It is not called for a proven replay. ``name`` is the sink's name in the ledger: keep it when the function changes.
    With ``position_columns``, the frame comes without the rows that are stored already. The other parameters are those
    of :class:`PostgresBatchWriter`.

    :raises ConfigurationError: at once, for arguments that cannot work.
    """
    if not name:
        raise bad_option("NO_SINK_NAME", "transactional_batch needs a name.", 'Give it one: name="orders".')
    refuse_unstorable(name=name)
    settings = batch_settings(
        url,
        password_from=password_from,
        pin_table=pin_table,
        positions=position_columns,
        bootstrap_servers=bootstrap_servers,
        kafka_options=kafka_options,
        notify_channel=notify_channel,
        checkpoint_location=checkpoint_location,
        retain_batches=retain_batches,
        adopt_checkpoint=adopt_checkpoint,
        replaces=replaces,
        independent=independent,
        lock_timeout=lock_timeout,
        retry_timeout=retry_timeout,
    )
    positions = settings.positions

    def decorate(function: Callable[[DataFrame, BatchTransaction], None]) -> BatchFunction:
        @calls_users_code(function)
        @functools.wraps(function)
        def write_batch(frame: DataFrame, batch_id: int) -> None:
            if positions:
                positions.check(frame.schema)

            def publish(connection: Connection, batch: Batch, stored: Offsets | None) -> Published:
                # The session may come from a pool, with temporary tables of an earlier batch. They would stand in the
                # way of new ones, and before permanent tables of the same name.
                driver_connection(connection).execute("DISCARD TEMP")
                tx = BatchTransaction(connection, batch)
                dropped = 0
                if positions is None:
                    function(frame, tx)
                else:
                    is_stored = stored_already(positions, stored, batch.span)
                    function(frame.where(~is_stored), tx)
                    dropped = frame.where(is_stored).count() if stored else 0
                tables = dict(tx.tables) if len(tx.tables) > 1 else None
                return Published(
                    tx.rows,
                    "function",
                    dropped,
                    tx.targets,
                    tx.counts,
                    tables,
                    notes=tx.notes,
                    written_as=tx.written_as,
                )

            planned = settings.batch_of(frame, batch_id)
            # Which tables the function writes to, only the function knows.
            refuse_first_batch(settings.commit, planned, name, None)
            work = settings.checked(frame, Work(lambda _: name, publish, sealed=True))
            verdict = commit_batch(settings.commit, planned, work)
            if verdict in SKIP:
                # A stateful query fails if a batch's frame is never run.
                frame.write.format("noop").mode("overwrite").save()

        return write_batch

    return decorate
