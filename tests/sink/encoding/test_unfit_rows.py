"""Rows that cannot be encoded are put aside one by one, and all others are encoded as if those had not been there."""

from __future__ import annotations

import inspect
import json
import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t
from support.sent_rows import arrow_rows
from support.spark_values import FIRST_DAY, TEXTS
from support.typed_rows import struct_of

from pgonce.sink.encoding import arrow_forms
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.unfit_rows import UnfitRows
from pgonce.sink.errors import EncodingError
from pgonce.sink.options.position_columns import PositionColumns

quick = settings(max_examples=60, deadline=None)

TEXT = t.StringType()
DETAIL = {"day": t.DateType(), "detail": t.MapType(TEXT, TEXT)}
STRUCT = struct_of({"id": t.LongType(), "name": TEXT, "tags": t.ArrayType(TEXT), **DETAIL})
SOME_TEXTS = st.none() | TEXTS | st.just("a\0b")
ROWS = st.lists(
    st.tuples(SOME_TEXTS, SOME_TEXTS, st.sampled_from([0, FIRST_DAY, FIRST_DAY - 1]), SOME_TEXTS), max_size=40
)
POSITIONS = PositionColumns("topic", "partition", "offset", written=False)


def arrow(rows, text=None):
    """The rows as Spark sends them; ids count from 0."""
    text = text or pa.string()
    names, tags, days, details = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.record_batch(
        [
            pa.array(range(len(rows)), pa.int64()),
            pa.array(names, text),
            pa.array([[None, tag] for tag in tags], pa.list_(text)),
            pa.array(days, pa.int32()).cast(pa.date32()),
            pa.array([None if text is None else [("k", text)] for text in details], pa.map_(text, text)),
        ],
        names=STRUCT.names,
    )


def unfit_column(row):
    """The first column of a row that Postgres cannot hold, and its error; None if there is none."""
    name, tag, day, detail = row
    for column, is_unfit, code in (
        ("name", name and "\0" in name, "NUL_IN_TEXT"),
        ("tags", tag and "\0" in tag, "NUL_IN_TEXT"),
        ("day", day < FIRST_DAY, "TIME_OUT_OF_RANGE"),
        ("detail", detail and "\0" in detail, "NUL_IN_TEXT"),
    ):
        if is_unfit:
            return column, code
    return None


def names_only(*names):
    """Rows with these names, of which nothing else is unfit."""
    return arrow([(name, None, 0, None) for name in names])


def binary_as_text(*values):
    """Bytes under the name of text, unseen, as Spark's cast does."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


@quick
@given(rows=ROWS, text=st.sampled_from([pa.string(), pa.large_string(), pa.string_view()]))
def test_the_others_are_encoded_as_if_there_were_no_bad_ones(rows, text):
    """Each bad row is put aside once, with its first bad column; bytes, rows and their order are those of the rest."""
    unfit, encoder = UnfitRows(len(rows)), CopyEncoder(STRUCT)
    batch = arrow(rows, text)
    body, fit = unfit.encode_others(encoder, batch)
    good = [number for number, row in enumerate(rows) if not unfit_column(row)]
    bad = [(number, *unfit_column(row)) for number, row in enumerate(rows) if unfit_column(row)]
    only = CopyEncoder(STRUCT)
    assert body == b"".join(only.encode(batch.slice(number, 1)) for number in good)
    assert fit.column("id").to_pylist() == good
    assert encoder.rows == len(good)
    assert [(json.loads(row.row_data)["id"], row.column_name, row.code) for row in unfit.rows] == bad
    if not bad:
        assert fit is batch


def test_it_says_what_the_error_would_have_said():
    """Code, column and what is wrong with the value are those of the error that stops a batch; no row is numbered."""
    batch = names_only("fits", "a\0b")
    with pytest.raises(EncodingError) as caught:
        CopyEncoder(STRUCT).encode(batch)
    unfit = UnfitRows(1)
    unfit.encode_others(CopyEncoder(STRUCT), batch)
    (row,) = unfit.rows
    assert row.code == caught.value.code == "NUL_IN_TEXT"
    assert (row.column_name, row.place) == ("name", None)
    assert row.message.removeprefix("C") in caught.value.what


def test_without_dead_letters_the_first_bad_row_is_the_error_of_the_encoder():
    """Word for word, so that nothing changes for those who did not ask for dead letters."""
    batch = names_only("fits", "a\0b", "\0")
    with pytest.raises(EncodingError) as plain:
        CopyEncoder(STRUCT).encode(batch)
    with pytest.raises(EncodingError) as caught:
        UnfitRows().encode_others(CopyEncoder(STRUCT), batch)
    assert caught.value.args == plain.value.args


@pytest.mark.parametrize("in_batches", [True, False])
def test_more_bad_rows_than_may_be_put_aside_stop_the_batch(in_batches):
    """The bound holds for all batches of a task together; the error is the next row's, and says what bounds them."""
    batches = [names_only("x\0", "fits"), names_only("fits", "y\0", "z\0")]
    if not in_batches:
        batches = [names_only("x\0", "fits", "fits", "y\0", "z\0")]
    unfit, encoder = UnfitRows(2), CopyEncoder(STRUCT)
    for batch in batches[:-1]:
        unfit.encode_others(encoder, batch)
    with pytest.raises(EncodingError, match=r"\[NUL_IN_TEXT\]") as caught:
        unfit.encode_others(encoder, batches[-1])
    assert caught.value.what.startswith("In row 5 of its task, column 'name' (Spark's string) has a string with a NUL")
    assert " 2 other rows " in caught.value.what
    assert "raise maxDeadLetters" in caught.value.remedy


def test_numbers_in_lists_beside_a_bad_row_are_not_taken_for_its_own():
    """Of lists that Arrow has to cast, those of other rows are cast without it."""
    struct = t.StructType([t.StructField("c", t.ArrayType(t.LongType()))])
    for lists, good in ([["x"], ["1"]], 1), ([["1"], ["x"]], 0), ([["1"], ["x"], ["3"]], None):
        unfit, encoder = UnfitRows(1), CopyEncoder(struct)
        _, fit = unfit.encode_others(encoder, pa.record_batch([pa.array(lists)], names=["c"]))
        expected = [["1"], ["3"]] if good is None else [lists[good]]
        assert fit.column("c").to_pylist() == expected
        assert [row.code for row in unfit.rows] == ["VALUE_UNENCODABLE"]


def test_the_codes_of_such_rows_are_known():
    """A replay tells by them which letters have objects in the place of values that jsonb cannot hold."""
    raised = re.findall(r'UnfitValueError\(\s*"(\w+)"', inspect.getsource(arrow_forms))
    assert sorted(set(raised)) == list(arrow_forms.UNFIT_CODES)


def placed(names, topics=None, positions=POSITIONS):
    """Rows of a Kafka topic, a unfit for them, and the columns that are written."""
    struct = struct_of({"name": TEXT, "topic": TEXT, "partition": t.IntegerType(), "offset": t.LongType()})
    batch = arrow_rows(struct, [(name, "t", 3, 70 + number) for number, name in enumerate(names)])
    batch = batch.set_column(1, "topic", topics or batch.column("topic"))
    written = positions.without(struct)
    return UnfitRows(9, positions), CopyEncoder(written), batch


@pytest.mark.parametrize("written", [True, False])
def test_a_row_keeps_its_place_in_kafka(written):
    """Topic, partition and offset stay with it, and are among its columns only if they are written."""
    positions = PositionColumns("topic", "partition", "offset", written=written)
    unfit, encoder, batch = placed(["fits", "a\0", "b\0"], positions=positions)
    _, fit = unfit.encode_others(encoder, batch)
    assert [row.place for row in unfit.rows] == [("t", 3, 71), ("t", 3, 72)]
    assert set(json.loads(unfit.rows[0].row_data)) == {"name", *(positions.names if written else ())}
    assert fit.schema.names == ["name", "topic", "partition", "offset"]
    assert fit.column("offset").to_pylist() == [70]


@pytest.mark.parametrize("topic", [b"t\0", b"t\xff"])
@pytest.mark.parametrize("written", [True, False])
def test_a_row_whose_place_cannot_be_written_is_not_put_aside(topic, written):
    """Nobody could say where it came from, so it stops the batch, as a row without a position does."""
    positions = PositionColumns("topic", "partition", "offset", written=written)
    unfit, encoder, batch = placed(["fits", "a\0"], binary_as_text(b"t", topic), positions)
    with pytest.raises(EncodingError, match="row 2 "):
        unfit.encode_others(encoder, batch)
    assert unfit.rows == []
