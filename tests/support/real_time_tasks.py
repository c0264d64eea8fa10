"""
Tasks of a real-time query as they speak to Postgres, without Spark and Java: the same statements, one after the other.

Runs in: pytest. Invariant: a task sends what the writer in Java sends, and judges the answers as that does.
"""

from __future__ import annotations

import itertools
import uuid

import psycopg
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.real_time.run import Run
from pgonce.real_time.statements import CLAIM, DISPUTE, LOOK
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.options.destination import Destination

COLUMNS = encoded_columns(StructType([StructField("id", LongType()), StructField("name", StringType())]))
QUERY = "11111111-0000-0000-0000-000000000000"
_attempts = itertools.count(1)


def start(**partitions):
    """Where partitions begin, by their numbers: ``start(p0=5)``."""
    return {"0": {"orders": {name.removeprefix("p"): at for name, at in partitions.items()}}}


def begun(url, at=None, *, query_id=QUERY, last=None, table="orders", remedies=Remedies()):  # noqa: B008
    """A run that has become the owner."""
    run = a_run(url, query_id, table, remedies)
    run.begin(last, at or start(p0=0), at or start(p0=0), None)
    return run


def a_run(url, query_id=QUERY, table="orders", remedies=Remedies()):  # noqa: B008
    """A run that has not begun yet."""
    where = Destination(table, create_table=True)
    return Run(CommitSettings(url, remedies), where, COLUMNS, query_id, "orders", "/checkpoint", None)


class Task:
    """
    One attempt of a task that has rows of partition 0, unless another is named.

    ``floor`` is how far it knows the partition to be stored, and ``before`` the claim of an earlier stage that must
    still be there; None if any may be.
    """

    def __init__(self, url, run, epoch=0, *, stage=0, spark_partition=0, partition=0, floor=None, before=None):
        self.connection = psycopg.connect(url, autocommit=True)
        self.run, self.epoch, self.partition = run, epoch, partition
        self.claim, self.attempt = uuid.uuid4(), next(_attempts)
        self.stage, self.spark_partition, self.floor, self.before = stage, spark_partition, floor, before
        self.next = None

    def _ask(self, statement, *values):
        text = statement.replace("%", "%%").replace("?", "%s")
        return self.connection.execute(text.encode(), [str(v) if isinstance(v, uuid.UUID) else v for v in values])

    def claims(self, first=0):
        """Whether the partition may be claimed; ``next`` is its position then."""
        place = self.run.writer_id, self.run.run_id, "orders", self.partition
        row = self._ask(
            CLAIM,
            *place,
            first,
            self.claim,
            self.stage,
            self.epoch,
            self.spark_partition,
            self.attempt,
            self.floor,
            self.before,
        ).fetchone()
        self.next = row[0] if row else None
        return row is not None

    def flushes(self, *offsets, next_known=None):
        """Whether rows of these records may be written."""
        ids = "{" + ",".join(map(str, offsets)) + "}"
        after, known = offsets[-1] + 1, self.next if next_known is None else next_known
        row = self._ask(
            self.run.flush, ids, ids, after, len(offsets), self.run.writer_id, "orders", self.partition, self.claim,
            known, offsets[0],
        ).fetchone()  # fmt: skip
        if row:
            self.next = after
        return row is not None

    def looks(self):
        """What the ledger has: owner, claim, position, and epoch, Spark's partition and stage of the claim."""
        return self._ask(LOOK, self.claim, self.run.run_id, "orders", self.partition, self.run.writer_id).fetchone()

    def disputes(self, first):
        """Say that rows of the partition came from another task of the batch too, or out of order."""
        self._ask(DISPUTE, first, self.run.writer_id, self.run.run_id, "orders", self.partition)
