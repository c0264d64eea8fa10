"""
pgonce: exactly-once PostgreSQL for Spark Structured Streaming.

The public names, in one place. ``format("pgonce")`` needs no import at all; ``python -m pgonce`` is the command line.
"""

if __name__ == "__main__":
    # Alone: the command line works where there is no Spark, and what else is here does not.
    from offsets_store.cli import main

    main()
else:
    from offsets_store.errors import PgonceError
    from offsets_store.listener import OffsetsListener
    from offsets_store.recovery.recover import recover_checkpoint
    from offsets_store.store import OffsetsStore
    from sink.foreach_batch import PostgresBatchWriter, transactional_batch
    from sink.start import recover_and_start
    from sink.transaction import BatchTransaction

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
