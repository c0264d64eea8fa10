"""
What a record says is what is read, or the record is refused, with the reason and without its values.

Covers: sink.decoding.fields, sink.decoding.values.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from pgonce.sink.decoding import json_records
from pgonce.sink.decoding.fields import DecodedColumn, Form
from pgonce.sink.decoding.json_records import JsonRecords, UnknownFieldError

LONG, TEXT = t.LongType(), t.StringType()


def column(name, data_type=LONG, form=Form.VALUE, *, required=False, path=None):
    """A column that gets the field of its name, or the one at this path."""
    return DecodedColumn(name, path or (name,), data_type, form, required, decoded_for="a type")


def decoded(columns, *values, **settings):
    """The rows of these records, and for each refused one its row, column and sentence."""
    found = JsonRecords(columns, **settings).decode(values)
    rows = list(zip(*(array.to_pylist() for array in found.arrays), strict=True))
    return rows, [(row, why.column, why.message) for row, why in sorted(found.refused.items())]


REFUSED = {
    b"": ("", "It is empty."),
    b"[1]": ("", "It is not a JSON object: Expected `object`, got `array`."),
    b'{"id":1}\n{"id":2}': ("", "It is not a JSON object: JSON is malformed: trailing characters (byte 10)."),
    b'{"id":1}{"id":2}': ("", "It is not a JSON object: JSON is malformed: trailing characters (byte 9)."),
    b'{"id":NaN}': ("", "It is not a JSON object: JSON is malformed: invalid character (byte 6)."),
    b'{"id":"1"}': ("id", "Field 'id' does not fit: Expected `int`, got `str`."),
    b'{"id":1.0}': ("id", "Field 'id' does not fit: Expected `int`, got `float`."),
    b'{"id":9223372036854775808}': ("id", "Field 'id' does not fit: Expected `int` <= 9223372036854775807."),
    b'{"id":null}': ("id", "Field 'id' does not fit: Expected `int`, got `null`."),
    b"{}": ("id", "Field 'id' does not fit: it is missing."),
}


@pytest.mark.parametrize("value", REFUSED)
def test_a_record_that_cannot_be_read_is_refused_and_no_other_is(value):
    """Each record is looked at by itself: one never takes the place of another."""
    rows, refused = decoded([column("id", required=True)], b'{"id":1}', value, b'{"id":3}')
    assert rows == [(1,), (None,), (3,)]
    assert refused == [(1, *REFUSED[value])]


@pytest.mark.parametrize(
    "value",
    [
        b'{"id":1,"id":2}',
        b'{"id" :1, "id":2}',
        b'{"id":1,"i\\u0064":2}',
        b'{"id":1,"o":{"a":1,"a":2}}',
        b'{"id":1,"text":"\\":","id":2}',
        b'{"o":[{"a":1},{"b":{"c":1,"c":1}}]}',
        b'{":y":1,"text":"x",":y":2}',
        b'{"o":{" :y":1,"k":"x"," :y":2}}',
    ],
)
def test_an_object_with_a_name_twice_is_refused(value):
    """One of the two values would be lost; it may be anywhere within the record, and written in any way."""
    columns = [column("id"), column("o", TEXT, Form.JSON), column("text", TEXT), column(":y")]
    assert decoded(columns, value) == ([(None,) * 4], [(0, "", json_records.DOUBLED)])
    assert decoded([column("id")], value, refuses=frozenset())[1] == [(0, "", json_records.DOUBLED)]


def test_what_looks_like_a_name_within_a_text_is_none():
    """Names are counted, and texts may look like them."""
    value = b'{"text": "a \\":1, \\"id\\" : 2", "o": {"a": "\\"b\\":", "b": 1}, "id": 1}'
    rows, refused = decoded([column("id"), column("text", TEXT), column("o", TEXT, Form.JSON)], value)
    assert refused == []
    assert rows == [(1, 'a ":1, "id" : 2', '{"a": "\\"b\\":", "b": 1}')]


UNFIT = {
    b'{"at":"2026-01-31T12:00:00"}': "at",
    b'{"at":"2026-01-31T12:00:00.1234567Z"}': "at",
    b'{"at":1}': "at",
    b'{"day":"2026-02-30"}': "day",
    b'{"amount":1.234}': "amount",
    b'{"amount":98765}': "amount",
    b'{"text":"a\\u0000b"}': "text",
    b'{"text":"\xff"}': "text",
    b'{"text":1}': "text",
    b'{"json":"\xff"}': "json",
    b'{"real":1e39}': "real",
    b'{"texts":["a",1]}': "texts",
    b'{"bytes":"a"}': "bytes",
}


@pytest.mark.parametrize("value", UNFIT)
def test_a_value_that_a_column_cannot_hold_is_refused(value):
    """It is never rounded, cut, or taken for another one; and the sentence repeats no value."""
    columns = [
        column("at", t.TimestampType()),
        column("day", t.DateType()),
        column("amount", t.DecimalType(5, 2)),
        column("text", TEXT),
        column("json", TEXT, Form.JSON),
        column("real", t.FloatType()),
        column("texts", t.ArrayType(TEXT)),
        column("bytes", t.BinaryType()),
    ]
    rows, ((row, name, message),) = decoded(columns, value)
    assert (rows, row, name) == ([(None,) * len(columns)], 0, UNFIT[value])
    assert message.startswith(f"Field {name!r} ")
    assert "98765" not in message


def test_numbers_keep_all_their_digits():
    """Those of a numeric without a scale travel as text."""
    digits = "12345678901234567890.12345678901234567890123456789012345678900"
    value = f'{{"n":{digits},"d":"1.50","list":[1.50,null]}}'.encode()
    listed = column("list", t.ArrayType(TEXT), Form.DIGITS)
    columns = [column("n", TEXT, Form.DIGITS), column("d", TEXT, Form.DIGITS), listed]
    assert decoded(columns, value) == ([(digits, "1.50", ["1.50", None])], [])


def test_a_path_leads_into_an_object():
    """An object that is missing or null has no fields; a sibling that no column takes is refused."""
    columns = [column("id", path=("c", "id")), column("name", TEXT, path=("c", "name"))]
    assert decoded(columns, b'{"c":{"id":1,"name":"a"}}', b'{"c":{"name":"b"}}', b'{"c":null}', b"{}")[0] == [
        (1, "a"),
        (None, "b"),
        (None, None),
        (None, None),
    ]
    with pytest.raises(UnknownFieldError) as unknown:
        decoded(columns, b'{"c":{"id":1,"age":7}}')
    assert (unknown.value.path, unknown.value.fits) == (("c", "age"), "bigint")
    required = [column("id", path=("c", "id"), required=True)]
    assert [row for row, *_ in decoded(required, b'{"c":null}', b'{"c":{}}', b'{"c":{"id":1}}')[1]] == [0, 1]


TEXTS = st.sampled_from(
    ['"a"', '"b"', '"\\u0061"', '":a"', '"\\":"', '"\\u0022:"', '"\\u003aa"', '"\\\\"', '"\\n"', '"{"', '","']
)


def objects(values):
    """Objects as texts, in which a name may come twice."""
    pairs = st.lists(st.tuples(TEXTS, values), max_size=3)
    return pairs.map(lambda found: "{" + ", ".join(f"{name} : {value}" for name, value in found) + "}")


VALUES = st.recursive(
    st.one_of(TEXTS, st.sampled_from(["1", "null", "1e5"])),
    lambda values: st.one_of(objects(values), st.lists(values, max_size=3).map(lambda found: f"[{', '.join(found)}]")),
    max_leaves=8,
)


@settings(max_examples=300)
@given(st.lists(VALUES, min_size=1, max_size=3))
def test_a_name_twice_is_found_wherever_it_is_in_json_of_a_column(values):
    """However its texts are written: names are counted for many records at once, and texts are not taken for names."""

    def has_double(text):
        found = []

        def pairs(of):
            found.append(len(dict(of)) < len(of))

        json.loads(text, object_pairs_hook=pairs)
        return any(found)

    columns = [column("id"), column("doc", TEXT, Form.JSON)]
    _, refused = decoded(columns, *(b'{"id":1,"doc":%s}' % text.encode() for text in values))
    assert [row for row, *_ in refused] == [row for row, text in enumerate(values) if has_double(text)]


def test_a_missing_object_hides_no_name_that_comes_twice():
    """What an object would have that is missing is not taken for names that are there."""
    columns = [column("id", path=("c", "id")), column("name", TEXT, path=("c", "name")), column("x")]
    assert decoded(columns, b'{"x":1,"x":1,"x":1,"x":1}')[1] == [(0, "", json_records.DOUBLED)]
    assert decoded(columns, b'{"x":1}', b'{"x":2,"c":{"id":3}}') == ([(None, None, 1), (3, None, 2)], [])


def test_a_record_with_bytes_that_are_no_text_is_refused():
    """Whether the field with these bytes is read or not, no record ends the batch with an error of Python's."""
    columns = [column("id"), column("o", TEXT, Form.JSON)]
    assert [row for row, *_ in decoded(columns, b'{"id":1,"o":"\\n\xff"}', b'{"id":2}')[1]] == [0]
    assert decoded([column("id")], b'{"id":1,"o":"\\n\xff"}', refuses=frozenset()) == ([(1,)], [])
    nested = [column("id", path=("c", "id"))]
    assert [row for row, *_ in decoded(nested, b'{"c":{"\xff":1}}', b'{"c":{"id":[' + b"[" * 100_000)[1]] == [0, 1]


def test_a_field_that_no_column_takes_is_refused_or_passed_over():
    """That is not about the record, but about the table."""
    with pytest.raises(UnknownFieldError) as unknown:
        decoded([column("id")], b'{"id":1}', b'{"id":1,"x":{"a":1}}')
    assert (unknown.value.path, unknown.value.fits) == (("x",), "jsonb")
    assert decoded([column("id")], b'{"id":1,"x":{"a":1}}', refuses=frozenset()) == ([(1,)], [])


def test_names_that_are_refused_are_those_of_the_record_itself():
    """A field of this name within an object is another one; so is one that leads to a column's field."""
    columns, refuses = [column("id", path=("c", "id"))], frozenset({"x", "c"})
    assert decoded(columns, b'{"c":{"id":1,"x":1},"y":[{"x":1}]}', refuses=refuses) == ([(1,)], [])
    with pytest.raises(UnknownFieldError) as unknown:
        decoded(columns, b'{"c":{"id":1}}', b'{"x":null,"y":1}', refuses=refuses)
    assert unknown.value.path == ("x",)


def test_records_without_a_value_have_no_fields():
    """They are no bad records here: what they mean depends on the mode."""
    assert decoded([column("id", required=True)], None, b'{"id":2}', None) == ([(None,), (2,), (None,)], [])


def test_many_slices_are_one_column(monkeypatch):
    """A refused record keeps its place, whichever slice it is in."""
    monkeypatch.setattr(json_records, "SLICE", 3)
    values = [f'{{"id":{number}}}'.encode() if number % 5 else b"bad" for number in range(11)]
    rows, refused = decoded([column("id")], *values)
    assert rows == [(number if number % 5 else None,) for number in range(11)]
    assert [row for row, *_ in refused] == [0, 5, 10]
    assert decoded([column("id")]) == ([], [])


@pytest.mark.parametrize("number", ["1e-10000000", '"1e-2147483647"', "1e2147483647", "0e-9999999"])
def test_a_number_with_an_exponent_that_no_decimal_has_is_refused(number):
    """Arrow would count with it until it crashes."""
    columns = [column("amount", t.DecimalType(12, 2)), column("all", t.ArrayType(t.DecimalType(12, 2)))]
    _, refused = decoded(columns, b'{"amount":%s}' % number.encode(), b'{"all":[%s]}' % number.encode())
    assert [(row, name) for row, name, _ in refused] == [(0, "amount"), (1, "all")]
