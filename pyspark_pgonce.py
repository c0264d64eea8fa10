"""
Makes ``format("pgonce")`` work with no registration: PySpark imports every installed module named ``pyspark_*``.

Runs in the worker that looks up data sources. Invariant: nothing is imported here but the data source.
"""

from pgonce.every_room import EVERY_ROOM
from pgonce.sink.data_source.spark_interface import PgonceDataSource

__all__ = ["DefaultSource"]


class DefaultSource(PgonceDataSource):
    """The data source with every room that its options may need."""

    rooms = EVERY_ROOM
