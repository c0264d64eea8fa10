"""
What users give to ``foreachBatch``: it reads their arguments, and hands the core every room.

Runs on the driver, where a query is set up. Invariant: nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from typing_extensions import Unpack

from pgonce.every_room import EVERY_ROOM
from pgonce.sink.foreach_batch.batch_transaction import BatchTransaction
from pgonce.sink.foreach_batch.batch_writer import BatchWriter
from pgonce.sink.foreach_batch.transactional_batch import BatchFunction, in_one_transaction
from pgonce.sink.options.definitions import FunctionOptions, WriterOptions
from pgonce.sink.options.option import Way
from pgonce.sink.options.reading import read, takes_options


@takes_options(Way.WRITER)
class PostgresBatchWriter(BatchWriter):
    """
    Writes every batch into one table: ``df.writeStream.foreachBatch(PostgresBatchWriter(url, table="events"))``.

    With ``route`` and ``tables`` it writes each row into the table that its value chooses.

    :raises ConfigurationError: at once, for arguments that cannot work.
    :raises TargetError: at once, for a table that is missing or cannot be written into, if the database can be reached.
        A client of Spark Connect leaves it to the first batch.
    """

    def __init__(self, url: str = "", **options: Unpack[WriterOptions]) -> None:
        super().__init__(read({"url": url, **options}, Way.WRITER), EVERY_ROOM)


@takes_options(Way.FUNCTION)
def transactional_batch(
    url: str = "", **options: Unpack[FunctionOptions]
) -> Callable[[Callable[[DataFrame, BatchTransaction], None]], BatchFunction]:
    """
    Turn a function ``(batch, tx)`` into one for ``foreachBatch``: all that it does through ``tx`` is one transaction.

    It is not called for a proven replay. ``name`` is the sink's name in the ledger: keep it when the function changes.
    With ``position_columns``, the frame comes without the rows that are stored already.

    :raises ConfigurationError: at once, for arguments that cannot work.
    """
    return in_one_transaction(read({"url": url, **options}, Way.FUNCTION), EVERY_ROOM)
