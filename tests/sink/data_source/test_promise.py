"""The rows that a batch's parcels promise: each once, whichever way they came."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from pgonce.offsets_store.checkpoint.log_entries import OffsetLogEntry
from pgonce.sink.data_source.commit_parcels import promise
from pgonce.sink.data_source.parcel import Parcel
from pgonce.sink.data_source.promise import Promise, promised_rows
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.encoding.unfit_rows import UnfitRow
from pgonce.sink.identity.from_checkpoint import Origin
from pgonce.sink.options.position_columns import PositionColumns
from pgonce.sink.positions import encoded_rows
from pgonce.sink.staging import StagedRows, StagingTable

ORIGIN = Origin("q1", "r1", 7, OffsetLogEntry(7, "abc"))
TABLE = StagingTable("q1", "events", "r1", 7)
STRUCT = t.StructType([t.StructField("id", t.LongType())])
POSITIONS = PositionColumns("topic", "partition", "offset", written=False)


def body(*ids):
    """Rows with these ids, as a task encodes them."""
    return CopyEncoder(STRUCT).encode(pa.record_batch({"id": pa.array(ids, pa.int64())}))


def placed(*ids):
    """The same with their positions: in partition 0 of topic t, with offsets that are their ids."""
    rows = [{"topic": "t", "partition": 0, "offset": offset} for offset in ids]
    schema = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
    return encoded_rows(body(*ids), len(ids), POSITIONS.of(pa.RecordBatch.from_pylist(rows, schema=schema)))


def inline(partition_id, *ids):
    """A parcel that holds these rows."""
    return Parcel(ORIGIN, partition_id, len(ids), inline=(placed(*ids),))


def rows_of(*parcels, positions=None, received=()):
    """The rows of these parcels, of which the receiver has kept some."""
    return promised_rows(encoded_columns(STRUCT), positions, promise(parcels), lambda: iter(received), TABLE)


STAGED = Parcel(ORIGIN, 1, 5, staged=((11, 2), (12, 3)))
RECEIVED = Parcel(ORIGIN, 2, 4, received=(9, 4))
# Of which the receiver has kept the first four.
IN_PART = Parcel(ORIGIN, 4, 7, received=(10, 4), staged=((13, 3),))


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


def test_all_rows_are_counted_and_those_that_are_not_staged_are_bodies():
    """What is staged is promised by its marks; bodies can be read again."""
    rows = rows_of(inline(0, 1, 2), STAGED, RECEIVED, inline(3, 3), received=[placed(4, 5), placed(6, 7)])
    assert rows.count() == 12
    assert [sorted(rows.bodies()) for _ in range(2)] == [sorted([body(1, 2), body(3), body(4, 5), body(6, 7)])] * 2
    assert rows.staged == StagedRows(TABLE, ((11, 2), (12, 3)))


def test_rows_below_the_stored_positions_are_left_out():
    """Inline and received rows are dropped here; of the staged ones, Postgres drops them."""
    stored = {"0": {"t": {"0": 3}}}
    parcels = [inline(0, 1, 2, 3), STAGED, RECEIVED, inline(3, 4, 5)]
    rows = rows_of(*parcels, positions=POSITIONS, received=[placed(0, 1), placed(2, 6)]).not_stored(stored)
    assert sorted(rows.bodies()) == sorted([body(3), body(4, 5), body(6)])
    assert rows.count() == 4 + 5
    assert rows.staged == StagedRows(TABLE, ((11, 2), (12, 3)), POSITIONS, stored)


def test_rows_that_do_not_carry_their_positions_are_never_taken_for_new_ones():
    """What cannot be compared with what is stored ends the batch."""
    bare = replace(placed(4, 5), positions=b"")
    rows = rows_of(RECEIVED, positions=POSITIONS, received=[bare]).not_stored({"0": {"t": {"0": 3}}})
    with pytest.raises(pa.ArrowInvalid):
        list(rows.bodies())
    with pytest.raises(pa.ArrowInvalid):
        rows.count()


def test_a_receiver_is_told_of_all_rows():
    """It commits the batch, so it hears of those that it has and of those that it has not, and how far all reach."""
    parcels = [
        replace(inline(0, 1, 2), reach={"t": {"0": (1, 3)}}),
        replace(STAGED, reach={"t": {"0": (2, 9), "1": (0, 1)}}),
        RECEIVED,
        replace(IN_PART, reach={"u": {"0": (5, 6)}}),
    ]
    promised = promise(parcels)
    assert promised == Promise(
        "inline+received+staged",
        {2: (9, 4), 4: (10, 4)},
        (placed(1, 2),),
        ((11, 2), (12, 3), (13, 3)),
        reach={"t": {"0": (1, 9), "1": (0, 1)}, "u": {"0": (5, 6)}},
    )
    assert promised.rows == rows_of(*parcels).count() == 18
    assert parcels[0].reach == {"t": {"0": (1, 3)}}


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
    assert rows.unfit() == promise(parcels).unfit == (unfit(0), unfit(1), unfit(2))
    assert rows.count() == promise(parcels).rows == 1 + 5 + 4 + 1
    assert rows_of(replace(inline(0), unfit=(unfit(1),)), STAGED).transport == "staged"


def test_of_them_too_those_below_the_stored_positions_are_left_out():
    """A row that was put aside before is not put aside again; one of an unknown place is."""
    elsewhere = replace(unfit(0), place=("t", 1, 0))
    nowhere = replace(unfit(0), place=None)
    parcel = replace(inline(0, 1, 2, 3), unfit=(unfit(1), unfit(2), elsewhere, nowhere))
    rows = rows_of(parcel, positions=POSITIONS).not_stored({"0": {"t": {"0": 2}, "u": {"1": 5}}})
    assert rows.unfit() == (unfit(2), elsewhere, nowhere)
    assert rows.count() == 2
