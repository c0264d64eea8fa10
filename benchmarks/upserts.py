"""
Upsert as people do without pgonce: Spark writes a staging table by JDBC, and one statement merges it.

Runs on the driver. Invariant: the merge is one transaction, which also empties the staging table, so this is
a correct rival, except that it does not handle a crash between the two steps, or after them.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from psycopg import sql
from pyspark.sql import DataFrame


def merge_by_hand(url: str, jdbc_url: str, table: str) -> Callable[[DataFrame, int], None]:
    """A foreachBatch function that upserts by ``id``."""
    beside = f"{table}_beside"
    properties = {"driver": "org.postgresql.Driver", "reWriteBatchedInserts": "true", "batchsize": "10000"}
    with psycopg.connect(url) as connection:
        connection.execute(f"CREATE UNLOGGED TABLE IF NOT EXISTS {beside} (LIKE {table})".encode())

    def write(frame: DataFrame, _: int) -> None:
        frame.write.jdbc(jdbc_url, beside, mode="append", properties=properties)
        columns = [sql.Identifier(name) for name in frame.columns]
        merge = sql.SQL(
            "INSERT INTO {table} ({columns}) SELECT {columns} FROM {beside} "
            "ON CONFLICT (id) DO UPDATE SET {assignments}"
        ).format(
            table=sql.Identifier(table),
            beside=sql.Identifier(beside),
            columns=sql.SQL(", ").join(columns),
            assignments=sql.SQL(", ").join(
                sql.SQL("{0} = EXCLUDED.{0}").format(name) for name in columns if name != sql.Identifier("id")
            ),
        )
        with psycopg.connect(url) as connection:
            connection.execute(merge)
            connection.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(beside)))

    return write
