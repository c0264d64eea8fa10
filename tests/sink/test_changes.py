"""
What changes look like before they are encoded: one image a row, and whether it deletes.

Covers: sink.read_rows.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema
from support.typed_rows import struct_of
from support.with_rooms import reader_of

from pgonce.offsets_store.errors import ConfigurationError
from pgonce.sink.errors import EncodingError
from pgonce.sink.options.destination import destination
from pgonce.sink.options.routes import where_to

ROW = struct_of({"id": t.LongType(), "tags": t.ArrayType(t.StringType()), "place": struct_of({"x": t.DoubleType()})})
BESIDE = {"source": struct_of({"lsn": t.LongType()}), "op": t.StringType(), "ts_ms": t.LongType()}
ENVELOPE = struct_of({"before": ROW, "after": ROW, **BESIDE, "offset": t.LongType()})
FEED = struct_of({"id": t.LongType(), "_change_type": t.StringType(), "_commit_version": t.LongType()})
FLAGGED = struct_of({"id": t.LongType(), "gone": t.BooleanType()})
FIRST, SECOND = ({"id": n, "tags": [str(n)], "place": {"x": float(n)}} for n in (1, 2))
KEY_OF_SECOND = {"id": 2, "tags": None, "place": None}


def read(struct, rows, **options):
    """The rows as they come out, after they went in."""
    reader = reader_of(destination("events", "apply", **options), struct)
    batch = reader.read(pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(struct)))
    assert batch.schema.names == reader.struct_type.names
    return batch.to_pylist()


def envelope(op, before=None, after=None, lsn=7):
    """An event as Debezium sends it."""
    return {"before": before, "after": after, "source": {"lsn": lsn}, "op": op, "ts_ms": 1, "offset": 3}


def told_of(op, before=None):
    """The columns that say what an event does."""
    return {"pgonce_operation": op, "pgonce_before": before, "pgonce_deleted": op == "d"}


def test_an_envelope_becomes_its_image():
    """Writes bring the row after the change; a delete brings the row before it, or only its key."""
    rows = [envelope("c", None, FIRST), envelope("r", None, FIRST), envelope("u", FIRST, SECOND),
            envelope("d", KEY_OF_SECOND)]  # fmt: skip
    beside = {"offset": 3}
    assert read(ENVELOPE, rows, change_feed="debezium") == [
        {**FIRST, **beside, **told_of("c")},
        {**FIRST, **beside, **told_of("r")},
        {**SECOND, **beside, **told_of("u", '{"row":{"id":1},"key":{}}')},
        {**KEY_OF_SECOND, **beside, **told_of("d")},
    ]


@pytest.mark.parametrize(("order_by", "name", "value"), [("source.lsn", "lsn", 7), ("ts_ms", "ts_ms", 1)])
def test_an_envelope_keeps_the_field_that_orders_it(order_by, name, value):
    """A field of the envelope becomes a column of its own name; one beside the envelope is there anyway."""
    (row,) = read(ENVELOPE, [envelope("c", None, FIRST)], change_feed="debezium", order_by=order_by)
    assert row[name] == value
    (row,) = read(ENVELOPE, [envelope("c", None, FIRST)], change_feed="debezium", order_by="offset")
    assert list(row) == ["id", "tags", "place", "offset", "pgonce_operation", "pgonce_before", "pgonce_deleted"]


@pytest.mark.parametrize("order_by", [None, "op"])
def test_a_column_of_the_source_may_be_called_as_the_operation(order_by):
    """It is a column of the row like any other, and nothing that is done to the row follows from it."""
    row = struct_of({"id": t.LongType(), "op": t.StringType()})
    struct = struct_of({"before": row, "after": row, "op": t.StringType()})
    events = [{"before": None, "after": {"id": 1, "op": "d"}, "op": "u"},
              {"before": {"id": 2, "op": "c"}, "after": None, "op": "d"}]  # fmt: skip
    assert read(struct, events, change_feed="debezium", order_by=order_by) == [
        {"id": 1, "op": "d", **told_of("u")},
        {"id": 2, "op": "c", **told_of("d")},
    ]


@pytest.mark.parametrize(
    ("struct", "row", "options", "says"),
    [
        # A tombstone, a truncate, a record that is not JSON.
        *((ENVELOPE, envelope(op), {"change_feed": "debezium"}, "truncate") for op in (None, "t", "m", "x", "")),
        # Without its row, nothing says what to write, or which row to delete.
        (ENVELOPE, envelope("d", None, None), {"change_feed": "debezium"}, "'before' .* is null"),
        (ENVELOPE, envelope("u", FIRST, None), {"change_feed": "debezium"}, "'after' .* is null"),
        # The feeds write them in one case.
        *(
            (FEED, {"id": 1, "_change_type": kind, "_commit_version": 1}, {"change_feed": "delta"}, "_change_type")
            for kind in (None, "update", "INSERT")
        ),
        (FLAGGED, {"id": 1, "gone": None}, {"delete_when": "gone"}, "is null"),
    ],
)
def test_what_is_to_be_done_is_never_guessed(struct, row, options, says):
    """A change that is not known is refused, with its place."""
    fits = {ENVELOPE: envelope("c", None, FIRST), FLAGGED: {"id": 1, "gone": True}}
    known = fits.get(struct, {"id": 1, "_change_type": "insert", "_commit_version": 1})
    with pytest.raises(EncodingError, match=rf"\[CHANGE_UNKNOWN\].*{says}") as refused:
        read(struct, [known, row], **options)
    assert "row 2 " in str(refused.value)


@pytest.mark.parametrize("sent", [pa.string(), pa.large_string()])
def test_an_operation_that_is_not_utf8_is_refused_too(sent):
    """Spark casts any bytes to a string."""
    data = pa.py_buffer(b"insert\xff\xfe")
    width = pa.int64() if sent == pa.large_string() else pa.int32()
    kinds = pa.Array.from_buffers(sent, 2, [None, pa.array([0, 6, 8], width).buffers()[1], data])
    batch = pa.record_batch([pa.array([1, 2]), kinds, pa.array([1, 1])], names=FEED.names)
    with pytest.raises(EncodingError, match=r"\[CHANGE_UNKNOWN\].*row 2 .*'\ufffd\ufffd'"):
        reader_of(destination("events", "apply", change_feed="delta"), FEED).read(batch)


@pytest.mark.parametrize("feed", ["delta", "spark"])
def test_a_change_feed_of_a_table_drops_the_images_before_updates(feed):
    """Of an update, the row after it is written."""
    types = ["insert", "update_preimage", "update_postimage", "delete"]
    rows = [{"id": n, "_change_type": kind, "_commit_version": n} for n, kind in enumerate(types)]
    assert [(row["id"], row["pgonce_deleted"]) for row in read(FEED, rows, change_feed=feed)] == [
        (0, False), (2, False), (3, True)
    ]  # fmt: skip


def test_a_column_that_says_which_rows_delete_passes_as_it_is():
    """It has a name of the user's."""
    assert read(FLAGGED, [{"id": 1, "gone": True}], delete_when="gone") == [{"id": 1, "gone": True}]


@pytest.mark.parametrize(
    ("struct", "options"),
    [
        (FLAGGED, {"delete_when": "missing"}),
        (FLAGGED, {"delete_when": "id"}),
        (FLAGGED, {"change_feed": "delta"}),
        (FLAGGED, {"change_feed": "debezium"}),
        (ENVELOPE, {"change_feed": "debezium", "order_by": "source.scn"}),
        (
            t.StructType([*ENVELOPE.fields, t.StructField("lsn", t.LongType())]),
            {"change_feed": "debezium", "order_by": "source.lsn"},
        ),
    ],
)
def test_a_frame_without_the_columns_of_its_feed_is_refused(struct, options):
    """Before any row is computed."""
    with pytest.raises(ConfigurationError, match="CHANGE_COLUMNS"):
        _ = reader_of(destination("events", "apply", **options), struct).struct_type


def test_no_rows_are_no_changes():
    """An empty batch of each feed comes out empty."""
    for struct, options in ((ENVELOPE, {"change_feed": "debezium"}), (FEED, {"change_feed": "delta"}),
                            (FLAGGED, {"delete_when": "gone"})):  # fmt: skip
        assert read(struct, [], **options) == []


MOVING = struct_of({"id": t.LongType(), "region": t.StringType(), "at": t.TimestampNTZType(), "note": t.BinaryType()})
KEYED = struct_of({"key": struct_of({"id": t.LongType()}), "before": MOVING, "after": MOVING, "op": t.StringType()})


def update(before, after, key=None):
    """An update, of which only the named fields are not null."""
    return {"key": key, "before": before, "after": after, "op": "u"}


def told(*rows, struct=KEYED, **options):
    """What is said of the rows before."""
    return [
        row["pgonce_before"] and json.loads(row["pgonce_before"])
        for row in read(struct, rows, change_feed="debezium", **options)
    ]


def test_an_update_says_what_was_before_it_if_a_key_may_have_changed():
    """Without keys any column may be one; with keys these alone are compared, in any case."""
    old, new = {"id": 1, "region": "eu\0", "note": b"\xff"}, {"id": 1, "region": "us"}
    row = {"id": 1, "region": "eu", "at": None, "note": "\\xff"}
    assert told(update(old, new), update(new, new), update(None, new)) == [
        {"row": row, "key": {}}, None, {"row": None, "key": {}},
    ]  # fmt: skip
    named = {"row": {"id": 1, "region": "eu"}, "key": {"id": 1}}
    assert told(update(old, new, {"id": 1}), keys=["ID", "region"]) == [named]
    assert told(update(old, new), keys=["id"]) == [None]
    # Nothing tells what a column was that the user has added, so each update is told.
    assert told(update(new, new), keys=["id", "tenant"]) == [{"row": {"id": 1}, "key": {}}]
    # The row before is told as soon as one of them is missing in it.
    assert told(update({"region": "us"}, new), keys=["id", "region"]) == [
        {"row": {"id": None, "region": "us"}, "key": {}}
    ]


def test_the_key_of_the_record_is_no_column_of_the_row():
    """If it is a struct; any other column of this name is one."""
    (row,) = read(KEYED, [update(None, {"id": 1}, {"id": 1})], change_feed="debezium")
    assert "key" not in row
    plain = t.StructType([t.StructField("key", t.StringType()), *KEYED.fields[1:]])
    rows = [{**update(None, {"id": 1}), "key": "k"}]
    (row,) = read(plain, rows, change_feed="debezium")
    assert (row["key"], row["pgonce_before"]) == ("k", None)


def test_an_update_of_the_column_that_chooses_the_table_is_refused():
    """The old row is in another table."""
    tables = {"eu": {"table": "eu"}, "us": {"table": "us"}}
    where = where_to(route="region", tables=tables, mode="apply", change_feed="debezium", keys=["id"])
    reader = reader_of(where, KEYED)
    moved, stays = update({"id": 1, "region": "eu"}, {"id": 1, "region": "us"}), update(None, {"id": 1, "region": "us"})
    batch = pa.RecordBatch.from_pylist([stays], schema=to_arrow_schema(KEYED))
    assert len(reader.read(batch)) == 1
    with pytest.raises(EncodingError, match=r"\[KEY_CHANGED\]"):
        reader.read(pa.RecordBatch.from_pylist([stays, moved], schema=to_arrow_schema(KEYED)))
