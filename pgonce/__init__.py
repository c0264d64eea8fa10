"""
pgonce: exactly-once PostgreSQL for Spark Structured Streaming.

The public names, in one place. ``format("pgonce")`` needs no import at all; ``python -m pgonce`` is the command line.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgonce.for_each_batch import PostgresBatchWriter, transactional_batch
    from pgonce.offsets_store.errors import PgonceError
    from pgonce.offsets_store.postgres.postgres_url import Login, PostgresUrl
    from pgonce.offsets_store.progress.listener import OffsetsListener, watch
    from pgonce.offsets_store.status.dead_letters import StoredLetter
    from pgonce.offsets_store.status.failures import StoredFailure
    from pgonce.offsets_store.status.states import Finding, MeasuredLag, QueryState
    from pgonce.offsets_store.status.store import OffsetsStore
    from pgonce.offsets_store.status.stored import CurrentOffset, PartitionLag, StoredBatch, StoredWriter
    from pgonce.real_time.start import start_real_time
    from pgonce.recovery.recover import Recovery, recover_checkpoint
    from pgonce.recovery.recover_and_start import recover_and_start
    from pgonce.sink.foreach_batch.batch_transaction import BatchTransaction
    from pgonce.topic_query import topic_to_table

    __version__: str
else:
    # Imported only when they are asked for: the command line works without Spark, and most of these do not.
    _NAMES = {
        "pgonce.for_each_batch": "PostgresBatchWriter transactional_batch",
        "pgonce.offsets_store.errors": "PgonceError",
        "pgonce.offsets_store.postgres.postgres_url": "Login PostgresUrl",
        "pgonce.offsets_store.progress.listener": "OffsetsListener watch",
        "pgonce.offsets_store.status.dead_letters": "StoredLetter",
        "pgonce.offsets_store.status.failures": "StoredFailure",
        "pgonce.offsets_store.status.states": "Finding MeasuredLag QueryState",
        "pgonce.offsets_store.status.store": "OffsetsStore",
        "pgonce.offsets_store.status.stored": "CurrentOffset PartitionLag StoredBatch StoredWriter",
        "pgonce.real_time.start": "start_real_time",
        "pgonce.recovery.recover": "Recovery recover_checkpoint",
        "pgonce.recovery.recover_and_start": "recover_and_start",
        "pgonce.sink.foreach_batch.batch_transaction": "BatchTransaction",
        "pgonce.topic_query": "topic_to_table",
    }
    _MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

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
    "StoredLetter",
    "StoredWriter",
    "recover_and_start",
    "recover_checkpoint",
    "start_real_time",
    "topic_to_table",
    "transactional_batch",
    "watch",
]
