"""
Bring a frame's rows to the driver, as Arrow.

Runs on the driver. Invariant: rows are never turned into Python objects or pandas on their way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from pgonce.offsets_store.offsets import Offsets
from pgonce.offsets_store.verdict.facts import PlannedBatch

from ..changes.reader import ChangeReader, reader_of
from ..encoding.copy_encoder import CopyEncoder
from ..encoding.encoded_types import encoded_columns
from ..encoding.unfit_rows import UnfitRow, UnfitRows
from ..options.destination import DeadLetters, Destination
from ..options.position_columns import PositionColumns, written_type
from ..options.routes import Routes
from ..positions import not_stored, reach, refuse_outside, span_of
from ..writing.rows import Rows
from .arriving_batches import ArrivingBatches


@contextmanager
def collected_rows(frame: DataFrame, destination: Destination | Routes) -> Iterator[Rows]:
    """Like :func:`arriving_rows`, but wait until there are enough rows to begin with."""
    with arriving_rows(frame, destination) as (rows, arriving):
        arriving.wait()
        yield rows


@contextmanager
def arriving_rows(
    frame: DataFrame,
    destination: Destination | Routes,
    positions: PositionColumns | None = None,
    batch: PlannedBatch | None = None,
) -> Iterator[tuple[Rows, ArrivingBatches]]:
    """
    Run the frame; its rows are encoded as they arrive, and again as often as a commit needs.

    If the block fails, Spark's job is cancelled, because its rows are no longer needed. Rows come in no particular
    order. ``bodies`` and ``count`` raise what Spark raises, and so does the second object of the pair, which is there
    to wait for the rows.

    :param destination: says how rows tell what is to be done.
    :param positions: the columns that say where in Kafka each row comes from; bodies raise NULL_POSITION for a row that
        has none, and POSITION_OUTSIDE for one that is not in the range of ``batch``.
    :raises TypeMappingError: before any job runs, for a type that Postgres cannot hold.
    :raises ConfigurationError: POSITION_COLUMNS, before any job runs.
    """
    if positions:
        positions.check(frame.schema)
    reader = reader_of(destination, frame.schema)
    written = written_type(reader.struct_type, positions, destination)
    arriving = ArrivingBatches(frame)
    try:
        yield _Frame(arriving, reader, written, positions, batch, destination.dead_letters).rows(), arriving
    except BaseException:
        arriving.close()
        raise


@dataclass(frozen=True)
class _Frame:
    """
    The rows that are ``arriving``; their columns ``written`` go into the target.

    With ``dead_letters``, rows that cannot be encoded are ``put_aside``: those that the last complete run of
    :meth:`bodies` has found, of these rows or of those at or past what is ``stored``.
    """

    arriving: ArrivingBatches
    reader: ChangeReader
    written: StructType
    positions: PositionColumns | None
    batch: PlannedBatch | None
    dead_letters: DeadLetters | None
    stored: Offsets | None = None
    put_aside: list[UnfitRow] = field(default_factory=list, repr=False, compare=False)

    def rows(self) -> Rows:
        """What a commit needs to know about them."""
        return Rows(
            encoded_columns(self.written),
            self.count,
            self.bodies,
            "arrow",
            unfit=lambda: tuple(self.put_aside),
            positions=self.positions,
            since=lambda stored: replace(self, stored=stored).rows(),
        )

    def count(self) -> int:
        """Wait for all rows, and return their number, without those that are put aside."""
        arrived = self._count if self.stored or self.reader.drops_rows else self.arriving.rows()
        return arrived - len(self.put_aside)

    @cached_property
    def _count(self) -> int:
        # Asked when the rows are written and again when they are recorded; each time would read them all.
        return sum(part.num_rows for part in self._parts())

    def bodies(self) -> Iterator[bytes]:
        """The rows as they arrive."""
        unfit = UnfitRows(self.written, self.dead_letters.most if self.dead_letters else None, self.positions)
        encoder = CopyEncoder(self.written)
        for part in self._parts():
            body, _ = unfit.encode_others(encoder, part)
            yield body
        # Only now: a try that ended too early has found only some, and a second one finds them again.
        self.put_aside[:] = unfit.rows

    def _parts(self) -> Iterator[pa.RecordBatch]:
        for part in map(self.reader.read, self.arriving):
            if self.positions is None:
                yield part
                continue
            places = self.positions.of(part)
            if self.batch is not None and self.batch.span is not None:
                (source_id,) = self.batch.span.next
                refuse_outside(span_of(source_id, reach([places])), self.batch)
            yield part.filter(not_stored(places, self.stored)) if self.stored else part
