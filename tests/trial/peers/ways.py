"""
The ways from a topic to a table that the trial compares, each with its documented and most careful settings.

Pure. Invariant: a way says how it writes, and nothing about the faults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loads import COLUMNS

Family = Literal["spark", "real_time", "connect", "flink", "faucet"]


@dataclass(frozen=True)
class Way:
    """
    One way to write.

    :param family: what runs it: one process runs all ways of its family side by side.
    :param settings: as the table shows them.
    :param by_key: whether its table has one row for each customer, the newest one, and not one for each record.
    :param columns: columns that its table has besides, with its key.
    :param prefix: of the columns that it writes; its table is a view of them, then.
    """

    name: str
    family: Family
    shown: str
    settings: str
    by_key: bool = False
    columns: str = ""
    prefix: str = ""

    def create(self, table: str) -> str:
        """The statements that make its table."""
        if self.prefix:
            columns = [column.split() for column in COLUMNS.split(", ")]
            written = ", ".join(f"{self.prefix}{name} {' '.join(of_type)}" for name, *of_type in columns)
            shown = ", ".join(f"{self.prefix}{name} AS {name}" for name, *_ in columns)
            return f"CREATE TABLE {table}_rows ({written}); CREATE VIEW {table} AS SELECT {shown} FROM {table}_rows"
        key = ", PRIMARY KEY (customer)" if self.by_key else ""
        return f"CREATE TABLE {table} ({COLUMNS}{self.columns}{key})"

    def audit(self, table: str) -> str:
        """The auditor's question about its table."""
        of_record = "'{customer}', 'id'" if self.by_key else "'{id}'"
        return f"SELECT finding, in_source, in_target FROM pg_temp.audit_rows('sent', '{table}', {of_record})"


_COORDINATES = (
    ", __connect_topic text, __connect_partition integer, __connect_offset bigint, "
    "PRIMARY KEY (__connect_topic, __connect_partition, __connect_offset)"
)
_IN_FOREACH_BATCH = "`foreachBatch`, Spark 4.3, 4 tries of a task"

WAYS = {
    way.name: way
    for way in (
        Way("jdbc_append", "spark", "Spark JDBC, append", f"{_IN_FOREACH_BATCH}, `mode=append`"),
        Way(
            "jdbc_upsert", "spark", "Spark JDBC and an upsert by hand",
            f"{_IN_FOREACH_BATCH}; each key's newest row into a table beside it, then one `INSERT ... ON CONFLICT`",
            by_key=True,
        ),
        Way(
            "by_batch_id", "spark", "the batch id in the same transaction, by hand",
            f"{_IN_FOREACH_BATCH}; the pattern of Delta's `txnAppId` and `txnVersion`: rows and batch id in one "
            "transaction, under a lock on the row of the id; a batch with an id that is not greater is skipped",
        ),
        Way(
            "debezium_insert", "connect", "Debezium's JDBC sink, insert",
            "3.5.0, `insert.mode=insert`, offsets flushed each second",
        ),
        Way(
            "debezium_coordinates", "connect", "Debezium's JDBC sink, keyed by Kafka's coordinates",
            "3.5.0, `insert.mode=upsert`, `primary.key.mode=kafka`, offsets flushed each second",
            columns=_COORDINATES,
        ),
        Way(
            "debezium_upsert", "connect", "Debezium's JDBC sink, upsert",
            "3.5.0, `insert.mode=upsert`, `primary.key.mode=record_value`, offsets flushed each second", by_key=True,
        ),
        Way(
            "flink_xa", "flink", "Flink's JDBC sink, XA",
            "2.0.0 with connector 4.0.0-2.0, checkpoints each 0.5 s and kept, Flink's default restart strategy, "
            "start at the newest checkpoint",
        ),
        Way(
            "faucet", "faucet", "faucet-stream",
            "1.12.0, `delivery: exactly_once` as in its example, pages of at most 1,000 records, started again when "
            "it ends",
            prefix="value__",
        ),
        Way("pgonce_writer", "spark", "pgonce, `PostgresBatchWriter`", "append; a plain start"),
        Way("pgonce_format", "spark", 'pgonce, `format("pgonce")`', "append; a plain start"),
        Way("pgonce_topic", "spark", "pgonce, `topic_to_table`", "`decode=json`, upsert", by_key=True),
        Way("pgonce_real_time", "real_time", "pgonce, `start_real_time`", "append; batches of 5 s"),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Lane:
    """One of several pipelines of one way, which know nothing of each other."""

    way: Way
    number: int

    @property
    def name(self) -> str:
        """The lane's, and its table's."""
        return f"{self.way.name}_{self.number}"
