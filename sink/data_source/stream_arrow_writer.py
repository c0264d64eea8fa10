"""
Which class does a stream's writer derive from, so that Spark hands it Arrow?

Imported wherever ``format("pgonce")`` runs. Invariant: tasks get record batches, on every PySpark that has data sources
written in Python; no row is turned into Python objects on its way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import datasource

if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
else:

    class StreamArrowWriter(datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter):
        """
        The same for PySpark 4.0, which has no such class.

        Its planner looks only for the class of batch jobs before it hands Arrow to a writer, a stream's writer
        included (write_into_data_source.py); and its commit worker calls ``commit(messages, batch_id)`` of whatever
        ``streamWriter`` returns.
        """


__all__ = ["StreamArrowWriter"]
