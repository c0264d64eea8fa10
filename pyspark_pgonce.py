"""
Makes ``format("pgonce")`` work with no registration: PySpark imports every installed module named ``pyspark_*``.

Runs in the worker that looks up data sources. Invariant: nothing is imported here but the data source.
"""

from pgonce.sink.data_source.spark_interface import PgonceDataSource as DefaultSource

__all__ = ["DefaultSource"]
