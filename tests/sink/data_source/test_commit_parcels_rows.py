"""The rows that a batch's parcels promise: each once, whichever way they came."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from pgonce.offsets_store.checkpoint.log_entries import OffsetLogEntry
from pgonce.sink.data_source.commit_parcels import parcel_rows, promise
from pgonce.sink.data_source.parcel import Inline, Parcel, Received, Staged
from pgonce.sink.data_source.receiver.messages import Promise
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.encoding.unfit_rows import UnfitRow
from pgonce.sink.identity.from_checkpoint import Origin
from pgonce.sink.options.position_columns import position_columns
from pgonce.sink.staging import StagedRows, StagingTable

ORIGIN = Origin("q1", "r1", 7, OffsetLogEntry(7, "abc"))
TABLE = StagingTable("q1", "events", "r1", 7)
STRUCT = t.StructType([t.StructField("id", t.LongType())])
POSITIONS = position_columns(("topic", "partition", "offset"), written=False)


def body(*ids):
    """Rows with these ids, as a task encodes them."""
    return CopyEncoder(STRUCT).encode(pa.record_batch({"id": pa.array(ids, pa.int64())}))


def places(*offsets):
    """Positions in partition 0 of topic t."""
    rows = [{"topic": "t", "partition": 0, "offset": offset} for offset in offsets]
    schema = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
    return POSITIONS.of(pa.RecordBatch.from_pylist(rows, schema=schema))


def inline(partition_id, *ids):
    """A parcel that holds these rows, whose offsets are their ids."""
    return Parcel(ORIGIN, partition_id, len(ids), Inline((body(*ids),), (places(*ids),)))


def rows_of(*parcels, positions=None):
    """The rows of these parcels."""
    return parcel_rows(encoded_columns(STRUCT), positions, parcels, TABLE)


STAGED = Parcel(ORIGIN, 1, 5, Staged(((11, 2), (12, 3))))
RECEIVED = Parcel(ORIGIN, 2, 4, Received(9, 4))
# Of which the receiver has kept the first four.
IN_PART = Parcel(ORIGIN, 4, 7, Received(10, 4, ((13, 3),)))


@pytest.mark.parametrize(
    ("parcels", "way"),
    [
        ([inline(0, 1)], "inline"),
        ([STAGED], "staged"),
        ([inline(0, 1), STAGED], "inline+staged"),
        ([RECEIVED, inline(0, 1)], "inline+received"),
        ([IN_PART, inline(0, 1)], "inline+received+staged"),
        ([inline(0)], "inline"),
        ([inline(0), STAGED], "staged"),
    ],
)
def test_the_ledger_says_how_the_rows_came(parcels, way):
    """A batch is inline, staged or received, or several of these; parcels without rows do not count."""
    assert rows_of(*parcels).transport == way


def test_all_rows_are_counted_and_the_inline_ones_are_bodies():
    """What is staged is promised by its marks."""
    rows = rows_of(inline(0, 1, 2), STAGED, inline(3, 3))
    assert rows.count() == 8
    assert [list(rows.bodies()) for _ in range(2)] == [[body(1, 2), body(3)]] * 2
    assert rows.staged == StagedRows(TABLE, ((11, 2), (12, 3)))


def test_rows_below_the_stored_positions_are_left_out():
    """Inline rows are dropped here; of the staged ones, Postgres drops them."""
    stored = {"0": {"t": {"0": 3}}}
    rows = rows_of(inline(0, 1, 2, 3), STAGED, inline(3, 4, 5), positions=POSITIONS).since(stored)
    assert list(rows.bodies()) == [body(3), body(4, 5)]
    assert rows.count() == 3 + 5
    assert rows.staged == StagedRows(TABLE, ((11, 2), (12, 3)), POSITIONS, stored)


def test_a_receiver_is_told_of_all_rows():
    """It commits the batch, so it hears of those that it has and of those that it has not."""
    parcels = [inline(0, 1, 2), STAGED, RECEIVED, IN_PART]
    rows = rows_of(*parcels)
    promised = promise(parcels, rows)
    staged = ((11, 2), (12, 3), (13, 3))
    assert promised == Promise("inline+received+staged", {2: (9, 4), 4: (10, 4)}, (body(1, 2),), 2, staged)
    assert promised.rows == rows.count() == 18


def unfit(offset):
    """A row that could not be encoded, from this place of partition 0 of topic t."""
    return UnfitRow("{}", "name", "NUL_IN_TEXT", "Column 'name' has a NUL.", ("t", 0, offset))


def test_rows_that_could_not_be_encoded_are_not_among_the_others():
    """They come from every parcel, with any transport of its rows, and are promised with them; they do not count."""
    parcels = [
        replace(parcel, unfit=(unfit(number),)) for number, parcel in enumerate([inline(0, 1), STAGED, RECEIVED])
    ]
    parcels.append(inline(3, 7))
    rows = rows_of(*parcels)
    assert rows.unfit() == (unfit(0), unfit(1), unfit(2))
    assert rows.count() == 1 + 5 + 4 + 1
    assert promise(parcels, rows).unfit == rows.unfit()
    assert promise(parcels, rows).rows == rows.count()
    assert rows_of(replace(inline(0), unfit=(unfit(1),)), STAGED).transport == "staged"


def test_of_them_too_those_below_the_stored_positions_are_left_out():
    """A row that was put aside before is not put aside again; one of an unknown place is."""
    elsewhere = replace(unfit(0), place=("t", 1, 0))
    nowhere = replace(unfit(0), place=None)
    parcel = replace(inline(0, 1, 2, 3), unfit=(unfit(1), unfit(2), elsewhere, nowhere))
    rows = rows_of(parcel, positions=POSITIONS).since({"0": {"t": {"0": 2}, "u": {"1": 5}}})
    assert rows.unfit() == (unfit(2), elsewhere, nowhere)
    assert rows.count() == 2
