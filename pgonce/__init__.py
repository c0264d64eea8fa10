"""
pgonce: exactly-once PostgreSQL for Spark Structured Streaming.

The public names, in one place. ``format("pgonce")`` needs no import at all; ``python -m pgonce`` is the command line.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offsets_store.errors import PgonceError
    from offsets_store.listener import OffsetsListener
    from offsets_store.recovery.recover import recover_checkpoint
    from offsets_store.store import OffsetsStore
    from sink.foreach_batch import PostgresBatchWriter, transactional_batch
    from sink.start import recover_and_start
    from sink.transaction import BatchTransaction
else:
    # When they are asked for: the command line works where there is no Spark, and most of these do not.
    _MODULES = {
        "BatchTransaction": "sink.transaction",
        "OffsetsListener": "offsets_store.listener",
        "OffsetsStore": "offsets_store.store",
        "PgonceError": "offsets_store.errors",
        "PostgresBatchWriter": "sink.foreach_batch",
        "recover_and_start": "sink.start",
        "recover_checkpoint": "offsets_store.recovery.recover",
        "transactional_batch": "sink.foreach_batch",
    }

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name not in _MODULES:
            raise AttributeError(f"module 'pgonce' has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "BatchTransaction",
    "OffsetsListener",
    "OffsetsStore",
    "PgonceError",
    "PostgresBatchWriter",
    "recover_and_start",
    "recover_checkpoint",
    "transactional_batch",
]
