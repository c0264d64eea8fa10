"""
Debezium's events, as its connectors write them by default, become changes of the rows that they name.

Covers: sink.decoding.connect_schema, sink.decoding.schemas.
"""

from __future__ import annotations

import datetime as dt
import json
from base64 import b64encode
from decimal import Decimal

import pytest
from support.avro_records import Subject, named
from support.decoded_rows import write_records

from pgonce.offsets_store.errors import ConfigurationError, TargetError
from pgonce.sink.decoding.json_records import DOUBLED

DAY = dt.date(2026, 1, 31)
NOON = dt.datetime(2026, 1, 31, 12, 0, 0, 123456)  # noqa: DTZ001 (it has no zone)
MICROS = 1_769_860_800_123_456
TIME, CONNECTS, DATA = "io.debezium.time.", "org.apache.kafka.connect.data.", "io.debezium.data."


def kind(type_, name=None, **more):
    """A schema of Kafka Connect's."""
    return {"type": type_, "optional": True, **({"name": name} if name else {}), **more}


def unscaled(number):
    """A whole number as its converter writes the bytes of a decimal."""
    return b64encode(number.to_bytes(16, "big", signed=True)).decode()


def with_schema(schema, payload):
    """A record of Kafka Connect's JSON converter."""
    return json.dumps({"schema": schema, "payload": payload}).encode()


def struct(fields, name=None):
    """A schema of these fields."""
    return kind("struct", name, fields=[{**of, "field": field} for field, of in fields.items()])


ROW = {"id": kind("int64"), "part": kind("int32"), "name": kind("string")}


def event(op, before=None, after=None, fields=ROW, **more):
    """An event, with its schema."""
    row, source = struct(fields), struct({"lsn": kind("int64"), "table": kind("string")})
    envelope = {"before": row, "after": row, "source": source, "op": kind("string"), "ts_ms": kind("int64")}
    payload = {"before": before, "after": after, "source": {"lsn": 7, "table": "t"}, "op": op, "ts_ms": 1, **more}
    return with_schema(struct(envelope, "shop.public.t.Envelope"), payload)


def key_of(**fields):
    """The key of a record."""
    return with_schema(struct(dict.fromkeys(fields, kind("int64"))), fields)


def row(number, name="a", part=1):
    """A row of the source."""
    return {"id": number, "part": part, "name": name}


@pytest.fixture
def apply(url):
    """Apply events to table t; those that are refused are given back."""

    def run(*values, **options):
        return write_records(url, values, mode="apply", change_feed="debezium", **options)

    return run


# From the page of Debezium's connector for Postgres: a field's schema, its value, the column, and what it has.
FIELDS = {
    "a decimal": (
        kind("bytes", f"{CONNECTS}Decimal", parameters={"scale": "2", "connect.decimal.precision": "12"}),
        unscaled(-1250), "numeric(12,2)", Decimal("-12.50"),
    ),
    "a decimal of any scale": (
        struct({"scale": kind("int32"), "value": kind("bytes")}, f"{DATA}VariableScaleDecimal"),
        {"scale": 40, "value": unscaled(12)}, "numeric", Decimal(12).scaleb(-40),
    ),
    "a date": (kind("int32", f"{TIME}Date"), 20484, "date", DAY),
    "Connect's date": (kind("int32", f"{CONNECTS}Date"), 20484, "date", DAY),
    "milliseconds": (kind("int64", f"{TIME}Timestamp"), MICROS // 1000, "timestamp", NOON.replace(microsecond=123000)),
    "microseconds": (kind("int64", f"{TIME}MicroTimestamp"), MICROS, "timestamp", NOON),
    "nanoseconds": (kind("int64", f"{TIME}NanoTimestamp"), MICROS * 1000, "timestamp", NOON),
    "Connect's timestamp": (
        kind("int64", f"{CONNECTS}Timestamp"), MICROS // 1000, "timestamp", NOON.replace(microsecond=123000),
    ),
    "an instant": (
        kind("string", f"{TIME}ZonedTimestamp"), "2026-01-31T12:00:00.123456Z", "timestamptz",
        NOON.replace(tzinfo=dt.timezone.utc),
    ),
    "a time": (kind("int64", f"{TIME}MicroTime"), 1, "time", dt.time(0, 0, 0, 1)),
    "a time in milliseconds": (kind("int32", f"{TIME}Time"), 1, "time", dt.time(0, 0, 0, 1000)),
    "JSON": (kind("string", f"{DATA}Json"), '{"a": 1.50}', "jsonb", {"a": 1.5}),
    "an hstore": (kind("map", keys=kind("string"), values=kind("string")), {"a": "b"}, "jsonb", {"a": "b"}),
    "bytes": (kind("bytes"), "AP8=", "bytea", b"\0\xff"),
    "decimals": (
        kind("array", items=kind("bytes", f"{CONNECTS}Decimal", parameters={"scale": "1"})),
        [unscaled(90071992547409931), None], "numeric[]", [Decimal("9007199254740993.1"), None],
    ),
    "an array": (kind("array", items=kind("int32", f"{TIME}Date")), [20484, None], "date[]", [DAY, None]),
    "a smallint": (kind("int16"), -7, "smallint", -7),
    "a double": (kind("double"), 0.1, "double precision", 0.1),
}  # fmt: skip


@pytest.mark.parametrize("case", FIELDS)
def test_a_field_arrives_as_the_source_has_it(case, apply, create, stored):
    """With the default settings of the connector, and of Kafka Connect's converter."""
    of, value, column, expected = FIELDS[case]
    create(f"id bigint PRIMARY KEY, f {column}")
    assert apply(event("c", after={"id": 1, "f": value}, fields={"id": kind("int64"), "f": of})) == []
    assert stored("*") == [(1, expected)]


UNFIT = {
    "bytes for a text": (kind("bytes"), "AP8=", "text", "binary"),
    "a double for a numeric": (kind("double"), 0.1, "numeric", "double"),
    "decimals for doubles": (
        kind("array", items=kind("bytes", f"{CONNECTS}Decimal", parameters={"scale": "0"})),
        [unscaled(2**53 + 1)],
        "float8[]",
        "numeric in its schema",
    ),
    "a time without an offset": (kind("int64", f"{TIME}MicroTimestamp"), MICROS, "timestamptz", "time with its offset"),
    "a finer time": (kind("int64", f"{TIME}NanoTimestamp"), MICROS * 1000 + 1, "timestamp", "nanoseconds"),
    "infinity": (kind("int64", f"{TIME}MicroTimestamp"), 9223372036825200000, "timestamp", "OverflowError"),
    "infinity in a text": (kind("string", f"{TIME}ZonedTimestamp"), "infinity", "timestamptz", "time with its offset"),
    "a whole day": (kind("int64", f"{TIME}MicroTime"), 86_400_000_000, "text", "not one of a day"),
    "a time before midnight": (kind("int64", f"{TIME}MicroTime"), -1, "text", "not one of a day"),
    "half a day": (kind("int32", f"{TIME}Date"), 1.5, "text", "no whole number"),
    "a truth for a date": (kind("int32", f"{TIME}Date"), True, "text", "no whole number"),
    "JSON null": (kind("string", f"{DATA}Json"), "null", "jsonb", "JSON null"),
    "no JSON": (kind("string", f"{DATA}Json"), '{"a": ', "jsonb", "JSON cannot be read"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_field_that_the_column_does_not_hold_is_refused(case, apply, create, stored):
    """Never rounded, or read in another zone; nor a value that is none of its type."""
    of, value, column, why = UNFIT[case]
    create(f"id bigint PRIMARY KEY, f {column}")
    (letter,) = apply(event("c", after={"id": 1, "f": value}, fields={"id": kind("int64"), "f": of}))
    assert why in letter.message
    assert stored("*") == []


@pytest.mark.parametrize(
    ("of", "value", "column"), [("bytes", "AP8=", "text"), ("double", 0.1, "numeric"), ("int32", 7, "int")]
)
def test_a_path_into_a_map_is_checked_by_the_type_of_its_values(of, value, column, apply, create, stored):
    """As any other field is; what suits its column is written."""
    create(f"id bigint PRIMARY KEY, f {column}")
    fields = {"id": kind("int64"), "m": kind("map", keys=kind("string"), values=kind(of))}
    letters = apply(event("c", after={"id": 1, "m": {"k": value}}, fields=fields), columns={"f": "m.k"})
    assert all("in its schema" in letter.message for letter in letters)
    assert (len(letters), stored("*")) == ((0, [(1, 7)]) if column == "int" else (1, []))


def test_each_event_is_done_in_the_order_of_its_partition(apply, create, stored):
    """What has no value after a delete deletes again, and nothing else."""
    create()
    events = [
        (event("r", after=row(1)), key_of(id=1)),
        (event("c", after=row(2)), key_of(id=2)),
        (event("u", before=row(1), after=row(1, "b")), key_of(id=1)),
        (event("d", before=row(2)), key_of(id=2)),
        (None, key_of(id=2)),
        (event("c", after=row(3)), key_of(id=3)),
    ]
    values, keys = zip(*events, strict=True)
    assert apply(*values, record_keys=list(keys)) == []
    assert stored("id, name") == [(1, "b"), (3, "a")]
    assert apply(None, record_keys=[key_of(id=3)]) == []
    assert stored("id, name") == [(1, "b")]


def test_an_update_that_changes_a_key_moves_the_row(apply, create, stored):
    """Where the row before it tells the old key; where nothing does, the batch is refused."""
    create("id bigint, part int, name text, PRIMARY KEY (id, part)")
    assert apply(event("c", after=row(1)), record_keys=[key_of(id=1)]) == []
    assert apply(event("u", before=row(1), after=row(1, "b", part=2)), record_keys=[key_of(id=1)]) == []
    assert stored("part, name") == [(2, "b")]
    with pytest.raises(TargetError, match="KEY_CHANGED"):
        apply(event("u", after=row(1, "c", part=3)), record_keys=[key_of(id=1)])
    (letter,) = apply(None, record_keys=[key_of(id=1)])
    assert letter.message == "Neither its value nor its key has a value for part."
    assert apply(None, record_keys=[key_of(id=1)], null_values="ignore") == []


def test_a_value_that_the_source_could_not_read_is_refused_or_kept(apply, create, stored):
    """It never reaches a column."""
    create("id bigint PRIMARY KEY, part int, name text, doc jsonb")
    unread = "__debezium_unavailable_value"
    fields = ROW | {"doc": kind("string", f"{DATA}Json")}
    apply(event("c", after=row(1) | {"doc": "[1]"}, fields=fields))
    update = event("u", after=row(1, unread, part=2) | {"doc": unread}, fields=fields)
    (letter,) = apply(update)
    assert "set keepWhere" in letter.message
    assert apply(update, keep_where=unread) == []
    assert stored("part, name, doc") == [(2, "a", [1])]


def test_an_order_of_the_source_is_followed(apply, create, stored):
    """With onlyNewer an older event does nothing, whichever batch it comes in."""
    create("id bigint PRIMARY KEY, part int, name text, lsn bigint")
    order = {"order_by": "source.lsn", "only_newer": True}
    assert apply(event("c", after=row(1), source={"lsn": 9, "table": "t"}), **order) == []
    assert apply(event("u", after=row(1, "old"), source={"lsn": 8, "table": "t"}), **order) == []
    assert stored("name, lsn") == [("a", 9)]


def test_what_is_no_event_is_refused(apply, create, stored):
    """Each with its reason, and the settings of the connector where these are the cause."""
    create()
    without_schema = json.dumps({"before": None, "after": row(1), "op": "c"}).encode()
    twice = event("c", after=row(1)).replace(b'"op": "c"', b'"op": "c", "op": "c"')
    bad = [without_schema, b"{", event("t"), event("u"), event("d"), with_schema(kind("string"), "x"), twice]
    bad.append(event("c", after=row(1) | {"id": "x"}))
    messages = [letter.message for letter in apply(event("c", after=row(2)), *bad)]
    assert [part in message for part, message in zip(
        ["value.converter.schemas.enable=true", "value.converter.schemas.enable=true", "Its operation is 't'",
         "Its after is null", "Its before is null", "It has no operation", "a name twice", "'id'"], messages,
        strict=True,
    )] == [True] * 8  # fmt: skip
    assert stored("id, name") == [(2, "a")]


def test_a_new_field_is_refused_with_the_statement_that_fits(apply, create):
    """Its type is that of its schema."""
    create("id bigint PRIMARY KEY")
    fields = {"id": kind("int64"), "at": kind("int64", f"{TIME}MicroTimestamp")}
    with pytest.raises(TargetError, match='ADD COLUMN "at" timestamp;'):
        apply(event("c", after={"id": 1, "at": None}, fields=fields))


def test_ignoreextra_passes_over_no_field_of_a_column_that_the_table_has(apply, create, stored):
    """Whether its event writes the row or changes it; what the table lacks is passed over."""
    create("id bigint PRIMARY KEY, name text DEFAULT 'new'")
    options = {"schema_evolution": "ignoreExtra"}
    for one in (event("c", after=row(1)), event("u", after=row(1))):
        with pytest.raises(TargetError, match="COLUMN_UNKNOWN.*field 'name'"):
            apply(one, **options)
    assert apply(event("c", after=row(1)), **options, columns={"name": "name"}) == []
    assert stored("*") == [(1, "a")]


@pytest.mark.kafka
def test_events_may_be_of_avro(schema_registry, url, apply, create, stored, request):
    """As Confluent's converter writes them: it notes Kafka Connect's names beside the types."""
    create("id bigint PRIMARY KEY, at timestamp, amount numeric, doc jsonb")

    def of_connect(type_, name):
        return ["null", {"type": type_, "connect.name": name}]

    number = {"type": "record", "name": "VariableScaleDecimal", "namespace": "io.debezium.data",
              "fields": [named("scale", "int"), named("value", "bytes")],
              "connect.name": "io.debezium.data.VariableScaleDecimal"}  # fmt: skip
    fields = [
        named("id", "long"), named("at", of_connect("long", f"{TIME}MicroTimestamp")),
        named("amount", ["null", number]), named("doc", of_connect("string", f"{DATA}Json")),
    ]  # fmt: skip
    value = {"type": "record", "name": "Value", "namespace": "shop.t", "fields": fields}
    envelope = {"type": "record", "name": "Envelope", "namespace": "shop.t", "fields": [
        {"name": "before", "type": ["null", value], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None}, named("op", "string"),
    ]}  # fmt: skip
    subject = Subject(schema_registry, request.node.name)
    after = {"id": 1, "at": MICROS, "amount": {"scale": 1, "value": b"\x0f"}, "doc": '{"a": 1}'}
    record = subject.record({"op": "c", "after": after}, kind=envelope)
    keys = Subject(schema_registry, f"{request.node.name}-key")
    avro = {"decode": "avro", "schema_registry_url": subject.url}
    assert apply(record, record_keys=[keys.record({"id": 1}, ("id", "long"))], **avro) == []
    assert stored("*") == [(1, NOON, Decimal("1.5"), {"a": 1})]
    assert apply(None, record_keys=[keys.record({"id": 1}, ("id", "long"))], **avro) == []
    assert stored("*") == []


ODD_SCHEMAS = {
    "null": None,
    "a number": 5,
    "a list as type": {"type": "struct", "fields": [{"field": "id", "type": []}]},
    "fields that are none": {"type": "int32", "fields": 5},
    "a field without a name": {"type": "struct", "fields": [{"field": 5, "type": "int32"}]},
    "no type": {},
}


@pytest.mark.parametrize("case", ODD_SCHEMAS)
def test_an_odd_schema_makes_a_bad_record(case, apply, create, stored):
    """Converters write null where there is none, and producers what they like."""
    create()
    (letter,) = apply(with_schema(ODD_SCHEMAS[case], {"op": "c", "after": {"id": 1}}), event("c", after=row(2)))
    assert (letter.place[2], letter.code) == (0, "RECORD_UNDECODED")
    assert stored("id, name") == [(2, "a")]


def test_a_field_whose_name_is_none_is_an_unknown_one(apply, create):
    """Whatever stands in the place of its name."""
    create("id bigint PRIMARY KEY")
    schema = {
        "type": "struct",
        "fields": [{"field": "after", "type": "struct", "fields": [{"field": 5, "type": "int32"}]}],
    }
    with pytest.raises(TargetError, match="COLUMN_UNKNOWN"):
        apply(with_schema(schema, {"op": "c", "after": {"5": 1}}))


def test_the_payload_twice_is_refused(apply, create):
    """Neither is taken."""
    create()
    (letter,) = apply(event("c", after=row(1)).replace(b'"payload":', b'"payload": {}, "payload":'))
    assert letter.message == DOUBLED


def test_keys_of_another_type_in_the_row_before_make_a_bad_record(apply, create, stored):
    """Postgres would refuse the whole batch for them."""
    create("id bigint, part int, name text, PRIMARY KEY (id, part)")
    fields = ROW | {"part": kind("int64")}
    (letter,) = apply(event("u", before=row(1, part=3 * 10**9), after=row(1), fields=fields))
    assert letter.message.startswith("Of the row before: Field 'part' does not fit")
    texts = {"id": kind("int64"), "part": kind("int32"), "name": kind("string")}
    assert apply(event("u", before=row(1, "a\0"), after=row(1), fields=texts)) == []
    odd = with_schema(struct({"id": kind("int64"), "x\0": kind("string")}), {"id": 1, "x\0": "y\0"})
    with pytest.raises(TargetError, match="KEY_CHANGED"):
        apply(event("u", after=row(1, part=2)), record_keys=[odd])


def test_an_update_whose_key_cannot_be_read_never_doubles_a_row(apply, create, stored):
    """Nothing else tells whether the key was another one."""
    create("id bigint, part int, name text, PRIMARY KEY (id, part)")
    without, single = b'{"id": 1}', with_schema(kind("int64"), 1)
    apply(event("c", after=row(1)), record_keys=[without])
    (letter,) = apply(event("u", after=row(1, "c", part=3)), record_keys=[without])
    assert "key.converter.schemas.enable=true" in letter.message
    with pytest.raises(TargetError, match="KEY_CHANGED"):
        apply(event("u", after=row(1, "c", part=3)), record_keys=[single])
    assert stored("part") == [(1,)]


def test_an_array_that_the_source_could_not_read_is_refused(apply, create):
    """It comes as the bytes of the placeholder."""
    create("id bigint PRIMARY KEY, a int[]")
    fields = {"id": kind("int64"), "a": kind("array", items=kind("int32"))}
    (letter,) = apply(event("c", after={"id": 1, "a": list(b"__debezium_unavailable_value")}, fields=fields))
    assert "set keepWhere" in letter.message


def test_keys_may_have_other_names_in_the_table(apply, create, stored):
    """With columns; the record's key is known by its own."""
    create("pk bigint, part numeric, name text, PRIMARY KEY (pk, part)")
    key = with_schema(struct({"id": kind("int64"), "part": kind("int32")}), {"id": 1, "part": 1})
    options = {"columns": {"pk": "id"}, "record_keys": [key]}
    assert apply(event("c", after=row(1)), **options) == []
    assert apply(event("u", after=row(1, "b")), **options) == []
    assert apply(event("u", before=row(1, "b"), after=row(1, "c")), **options) == []
    assert stored("pk, part, name") == [(1, 1, "c")]
    assert apply(None, **options) == []
    assert stored("pk") == []


def test_an_order_that_events_do_not_have_is_refused(apply, create):
    """A snapshot has none."""
    create()
    (letter,) = apply(event("c", after=row(1)), order_by="source.lsnn")
    assert letter.message == "It has no source.lsnn, which orderBy names."
    with pytest.raises(ConfigurationError, match="kafkaColumns fills it"):
        apply(event("c", after=row(1)), kafka_columns={"part": "partition"}, keys=["id", "part"])


@pytest.mark.kafka
def test_a_table_is_created_by_the_rows_of_events(schema_registry, url, stored, request):
    """Not by their envelopes."""
    value = {"type": "record", "name": "Value", "fields": [named("id", "long"), named("name", "string")]}
    envelope = {
        "type": "record",
        "name": "Envelope",
        "fields": [named("after", ["null", value]), named("op", "string")],
    }
    subject = Subject(schema_registry, request.node.name)
    record = subject.record({"op": "c", "after": {"id": 1, "name": "a"}}, kind=envelope)
    options = {"decode": "avro", "schema_registry_url": subject.url, "schema_subjects": [subject.name]}
    options |= {"create_table": True, "keys": ["id"], "mode": "apply", "change_feed": "debezium"}
    assert write_records(url, [record], **options) == []
    assert stored("*") == [(1, "a")]
