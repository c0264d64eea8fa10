"""
What a task hands to the commit: its rows, or the promise that they are elsewhere, and which batch they belong to.

Made in tasks, opened in the commit worker. Invariant: the batch's identity travels in the parcels, because Spark tells
the commit worker nothing but the batch id.

The parcels of a batch job also have sums, from which a hash is made that is equal for two runs with the same rows, in
any order and any number of partitions. It depends on the columns, the values of each row, and how often each row is
there, and on nothing else. It is the sum of all rows' hashes, modulo 2 ** 256, because a sum does not depend on the
order. (An exclusive or would not see a row that is there twice.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage

from ..encoding.copy_encoder import body_rows
from ..encoding.encoded_types import EncodedColumn
from ..encoding.unfit_rows import UnfitRow
from ..errors import SparkError
from ..identity.from_checkpoint import Origin
from ..positions import EncodedRows, Reach
from .offer import Offer
from .workers import LOADED_VERSION, other_version

_PARTITIONS_AT_FULL_SIZE = 8
# What a task reports to Spark is as large. To stage so few rows takes a connection and 28 ms on a busy machine, and to
# send them 0.3 ms: without this, nearly all of 4,000 tasks with 25 rows each would stage them.
ALWAYS_INLINE_BYTES = 4096


@dataclass(frozen=True)
class Parcel(WriterCommitMessage):
    """
    One task's rows: how many there are, and the rows themselves or where they are.

    ``inline`` are those that travel here. ``received`` is the attempt whose rows the receiver has kept, and how many:
    the first ones. ``staged`` are the marks of those in the batch's staging table, each with a count; rows under other
    marks do not count, because they come from attempts that Spark did not choose, and from COPYs that were repeated.

    ``unfit`` are rows that could not be encoded; they are not among ``rows``, and are always here, wherever the others
    are. If rows carry their position in Kafka, ``reach`` says how far all of them reach, the unfit ones too. ``offer``
    has the receiver that the batch was planned with, even if the rows did not go through it. If no process was at its
    addresses, ``unreached`` says where Spark's driver listens. ``row_sum`` is the sum of the rows' hashes, if a batch
    job asks for them. ``columns`` are those of the rows, where records were decoded: only their planner has seen the
    table. ``made_by`` is the version of the code that encoded the rows: another version may encode them
    otherwise, and order the fields of a parcel otherwise.
    """

    origin: Origin
    partition_id: int
    rows: int
    inline: tuple[EncodedRows, ...] = ()
    staged: tuple[tuple[int, int], ...] = ()
    received: tuple[int, int] | None = None
    reach: Reach = field(default_factory=dict)
    offer: Offer | None = None
    unreached: str | None = None
    unfit: tuple[UnfitRow, ...] = ()
    row_sum: int | None = None
    columns: tuple[EncodedColumn, ...] = ()
    # By a factory, so that the class has no such attribute: unpickling a parcel that lacks it must not find ours.
    made_by: str = field(default_factory=lambda: LOADED_VERSION)

    def __repr__(self) -> str:
        # Spark may log messages; rows do not belong there.
        return f"Parcel(partition {self.partition_id}, {self.rows} rows, {'+'.join(self.ways)})"

    @property
    def ways(self) -> tuple[str, ...]:
        """How the rows travel."""
        ways = (*(["received"] if self.received else []), *(["staged"] if self.staged else []))
        return ways or ("inline",)


def inline_cap(inline_bytes: int, partition_id: int) -> int:
    """
    How many bytes the task of this partition may send inline.

    A task does not know how many others there are, and four that sent 200 MB each killed a driver. So the first eight
    partitions get ``inline_bytes`` each, the next eight 1/4 of it, the next 1/9, and so on: all together stay below
    13.2 times ``inline_bytes`` (8 * pi^2 / 6), however many partitions there are. Beyond that, each task may send
    :data:`ALWAYS_INLINE_BYTES`.
    """
    ring = 1 + partition_id // _PARTITIONS_AT_FULL_SIZE
    return max(inline_bytes // (ring * ring), min(inline_bytes, ALWAYS_INLINE_BYTES))


def open_parcels(messages: Sequence[WriterCommitMessage | None], batch_id: int) -> tuple[Origin, list[Parcel]]:
    """
    The parcels of a batch and the origin that they share.

    :raises SparkError: if a task sent nothing (Spark drops the rows of a continuous query), if another version of
        pgonce made a parcel, or if the parcels belong to different batches.
    """
    parcels = [message for message in messages if isinstance(message, Parcel)]
    if not parcels or len(parcels) < len(messages):
        raise SparkError.usual(
            "NO_ROWS_DELIVERED",
            f"Spark asked to commit batch {batch_id}, but {len(messages) - len(parcels)} of its {len(messages)} tasks "
            "delivered nothing. That is what the continuous trigger does with a Python sink: it drops every row.",
            "Use a micro-batch trigger: .trigger(processingTime='1 second') or availableNow=True.",
        )
    # Before anything else of them is read.
    for parcel in parcels:
        made_by = vars(parcel).get("made_by", "an older version")
        if made_by != LOADED_VERSION:
            raise other_version(f"The process that commits batch {batch_id}", "one of its tasks", made_by)
    origin = parcels[0].origin
    if any(parcel.origin != origin for parcel in parcels) or origin.batch_id != batch_id:
        raise SparkError.usual(
            "NOT_CALLED_BY_SPARK",
            f"The commit messages of batch {batch_id} belong to different batches or runs.",
            "Start the query again; if this happens again, report it with the driver's log.",
        )
    return origin, parcels


_HASH_BYTES = 32
_HASH_MODULUS = 1 << 8 * _HASH_BYTES
# Another way to hash, or to encode, must have another name: its hashes are not comparable with these.
_HASH_VERSION = "1"


class RowSum:
    """The sum of the hashes of all rows of one task attempt, as they are encoded."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, body: bytes) -> None:
        """Add the rows of a body of a binary COPY."""
        view, total = memoryview(body), 0
        for start, end in body_rows(view):
            digest = hashlib.blake2b(view[start:end], digest_size=_HASH_BYTES).digest()
            total += int.from_bytes(digest, "big")
        self.value = (self.value + total) % _HASH_MODULUS


def content_hash(columns: Iterable[EncodedColumn], rows: int, sums: Iterable[int]) -> str:
    """The hash of all rows, from the sums of their tasks."""
    total = sum(sums) % _HASH_MODULUS
    of = hashlib.blake2b(digest_size=_HASH_BYTES)
    for column in columns:
        of.update(f"{column.name!r} {column.postgres_type}\n".encode())
    of.update(rows.to_bytes(8, "big") + total.to_bytes(_HASH_BYTES, "big"))
    return f"{_HASH_VERSION}:{of.hexdigest()}"
