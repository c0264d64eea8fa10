"""
pgonce: exactly-once PostgreSQL for Spark Structured Streaming.

The public names, in one place. ``format("pgonce")`` needs no import at all; ``python -m pgonce`` is the command line.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgonce.cli.explain import explain
    from pgonce.for_each_batch import PostgresBatchWriter, transactional_batch
    from pgonce.offsets_store.errors import PgonceError
    from pgonce.offsets_store.postgres.postgres_url import Login, PostgresUrl
    from pgonce.offsets_store.progress.listener import OffsetsListener, watch
    from pgonce.offsets_store.status.dead_letters import StoredLetter
    from pgonce.offsets_store.status.failures import StoredFailure
    from pgonce.offsets_store.status.states import Activity, Finding, MeasuredLag, QueryState
    from pgonce.offsets_store.status.store import OffsetsStore
    from pgonce.offsets_store.status.stored import CurrentOffset, PartitionLag, StoredBatch, StoredJob, StoredWriter
    from pgonce.real_time.start import start_real_time
    from pgonce.recovery.recover import Recovery, recover_checkpoint
    from pgonce.recovery.recover_and_start import recover_and_start
    from pgonce.sink.foreach_batch.batch_transaction import BatchTransaction
    from pgonce.sink.options.sink_options import pipeline_sink_options
    from pgonce.topic_query import topic_to_table

    __version__: str
else:
    # Imported only when they are asked for: the command line works without Spark, and most of these do not.
    _MODULES = {
        "Activity": "pgonce.offsets_store.status.states",
        "BatchTransaction": "pgonce.sink.foreach_batch.batch_transaction",
        "CurrentOffset": "pgonce.offsets_store.status.stored",
        "Finding": "pgonce.offsets_store.status.states",
        "Login": "pgonce.offsets_store.postgres.postgres_url",
        "MeasuredLag": "pgonce.offsets_store.status.states",
        "OffsetsListener": "pgonce.offsets_store.progress.listener",
        "OffsetsStore": "pgonce.offsets_store.status.store",
        "PartitionLag": "pgonce.offsets_store.status.stored",
        "PgonceError": "pgonce.offsets_store.errors",
        "PostgresBatchWriter": "pgonce.for_each_batch",
        "PostgresUrl": "pgonce.offsets_store.postgres.postgres_url",
        "QueryState": "pgonce.offsets_store.status.states",
        "Recovery": "pgonce.recovery.recover",
        "StoredBatch": "pgonce.offsets_store.status.stored",
        "StoredFailure": "pgonce.offsets_store.status.failures",
        "StoredJob": "pgonce.offsets_store.status.stored",
        "StoredLetter": "pgonce.offsets_store.status.dead_letters",
        "StoredWriter": "pgonce.offsets_store.status.stored",
        "explain": "pgonce.cli.explain",
        "pipeline_sink_options": "pgonce.sink.options.sink_options",
        "recover_and_start": "pgonce.recovery.recover_and_start",
        "recover_checkpoint": "pgonce.recovery.recover",
        "start_real_time": "pgonce.real_time.start",
        "topic_to_table": "pgonce.topic_query",
        "transactional_batch": "pgonce.for_each_batch",
        "watch": "pgonce.offsets_store.progress.listener",
    }

    def __getattr__(name: str) -> object:
        from importlib import import_module, metadata

        if name == "__version__":
            return metadata.version("pgonce")
        if name not in _MODULES:
            raise AttributeError(f"module 'pgonce' has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "Activity",
    "BatchTransaction",
    "CurrentOffset",
    "Finding",
    "Login",
    "MeasuredLag",
    "OffsetsListener",
    "OffsetsStore",
    "PartitionLag",
    "PgonceError",
    "PostgresBatchWriter",
    "PostgresUrl",
    "QueryState",
    "Recovery",
    "StoredBatch",
    "StoredFailure",
    "StoredJob",
    "StoredLetter",
    "StoredWriter",
    "explain",
    "pipeline_sink_options",
    "recover_and_start",
    "recover_checkpoint",
    "start_real_time",
    "topic_to_table",
    "transactional_batch",
    "watch",
]
