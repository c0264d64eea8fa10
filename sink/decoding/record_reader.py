"""
Read the records of a frame that is Spark's Kafka source as it comes: each becomes a row of the table, or is refused.

Runs in tasks, and on the driver for foreachBatch, before rows are encoded. Invariants: every record is one row, in the
order in which they came, with its own position, unless the user leaves out those without a value. A record that cannot
be decoded stays a row, of nulls, with the reason and the whole record, so that its position counts as others do; what
encodes rows refuses it or puts it aside.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, cast

import msgspec
import pyarrow as pa
from pyspark.sql import types as t

from pgonce.offsets_store.errors import bad_target
from pgonce.offsets_store.postgres.text import LONGEST_NAME, is_storable

from ..encoding import compute as pc
from ..encoding.unfit_rows import REFUSED, Record
from ..options.definitions import DecodeFormat
from ..options.destination import (
    BEFORE_COLUMN,
    DELETED_COLUMN,
    OFFSET_COLUMN,
    OPERATION_COLUMN,
    ORIGIN_COLUMN,
    REGISTERED,
    Decoding,
    Destination,
)
from ..options.position_columns import RECORD_POSITIONS
from .debezium_events import AFTER, DELETES, Events, events_of
from .decoded_columns import DecodedColumn, KafkaColumn
from .fields import UnknownFieldError, or_null, read_as
from .json_records import MALFORMED, JsonRecords, has_double
from .records_with_schemas import json_of_each, records_with_schemas
from .values import Refusal, made

OF_KAFKA: dict[str, t.DataType] = {
    "value": t.BinaryType(),
    "topic": t.StringType(),
    "partition": t.IntegerType(),
    "offset": t.LongType(),
    "timestamp": t.TimestampType(),
    "key": t.BinaryType(),
}
"""The columns of Spark's Kafka source that are always there."""
HEADERS = "headers"
RESERVED = frozenset(
    {*RECORD_POSITIONS.names, OFFSET_COLUMN, ORIGIN_COLUMN, DELETED_COLUMN, REFUSED, OPERATION_COLUMN, BEFORE_COLUMN}
)
"""The names of columns that decoded rows have besides those of the table."""
_REFUSED_TYPE = pa.struct([(name, pa.string()) for name in ("column", "message", "where", *Record._fields)])


@dataclass(frozen=True)
class RecordReader:
    """
    Decodes records for the columns of ``table``, which is its name as SQL has it.

    :param columns: those that get fields; :param of_kafka: those that get what Kafka knows; :param others: the rest.
    """

    where: Destination
    columns: tuple[DecodedColumn, ...]
    of_kafka: tuple[KafkaColumn, ...]
    table: str
    others: tuple[str, ...] = ()
    with_positions: bool = True

    @property
    def drops_rows(self) -> bool:
        """Whether records without a value are left out."""
        return self._decoding.null_values == "ignore"

    @property
    def _decoding(self) -> Decoding:
        return self.where.decoding or Decoding("json")

    @property
    def _deleted(self) -> str | None:
        return self.where.changes.deleted if self.where.changes else None

    @cached_property
    def struct_type(self) -> t.StructType:
        """The columns that are decoded, and what says how their rows are written and where they come from."""
        fields = [column.field for column in self.columns]
        fields += [t.StructField(column.name, column.data_type) for column in self.of_kafka]
        if self._deleted and self._deleted not in {field.name for field in fields}:
            fields.append(t.StructField(self._deleted, t.BooleanType()))
        if self._is_debezium:
            fields += [t.StructField(name, t.StringType()) for name in (OPERATION_COLUMN, BEFORE_COLUMN)]
        if self.where.order_by == OFFSET_COLUMN:
            fields += [t.StructField(OFFSET_COLUMN, t.LongType()), t.StructField(ORIGIN_COLUMN, t.LongType())]
        if self.with_positions:
            kinds = (OF_KAFKA["topic"], OF_KAFKA["partition"], OF_KAFKA["offset"])
            fields += map(t.StructField, RECORD_POSITIONS.names, kinds)
        return t.StructType(fields)

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """
        The rows.

        :raises TargetError: COLUMN_UNKNOWN, if a record has a field that the table lacks.
        """
        try:
            values, refused, events = self._values(batch)
            decoded = _records_for(self.columns, self._ignores_extra, self._lenient).decode(values)
        except UnknownFieldError as unknown:
            raise self._unknown(unknown) from None
        by_name = dict(zip((column.name for column in self.columns), decoded.arrays, strict=True))
        refused |= decoded.refused
        has_none = batch.column("value").null_count > 0
        absent = batch.column("value").is_null() if has_none else None
        if absent is not None and self._deleted is None:
            none = [row for row, is_absent in enumerate(absent.to_pylist()) if is_absent]
            refused |= {row: Refusal("", "It has no value.") for row in none if not self.drops_rows}
        if self._decoding.key:
            self._fill_keys(batch, by_name, refused)
        for column in self.of_kafka:
            by_name[column.name] = self._known(batch, column, refused)
        if events is not None:
            by_name |= _of_events(events)
        if self._deleted:
            by_name[self._deleted] = self._deletes(by_name.get(self._deleted), absent, len(batch), refused)
        if self.where.order_by == OFFSET_COLUMN:
            by_name[OFFSET_COLUMN], by_name[ORIGIN_COLUMN] = batch.column("offset"), _origins(batch)
        if self.with_positions:
            by_name |= {
                name: batch.column(of)
                for name, of in zip(RECORD_POSITIONS.names, ("topic", "partition", "offset"), strict=True)
            }
        arrays = [by_name[name] for name in self.struct_type.names]
        names = list(self.struct_type.names)
        if refused:
            arrays.append(_reasons(batch, refused))
            names.append(REFUSED)
        read = pa.RecordBatch.from_arrays(arrays, names=names)
        return read.filter(pc.invert(absent)) if self.drops_rows and absent is not None else read

    def _values(self, batch: pa.RecordBatch) -> tuple[list[bytes | None], dict[int, Refusal], Events | None]:
        """The values as JSON, those that are none, and if they are Debezium's events, what these say."""
        values = batch.column("value").to_pylist()
        if not (self._decoding.registry_url or self._is_debezium):
            return values, {}, None
        at = (AFTER,) if self._is_debezium else ()
        reader = records_with_schemas(
            self._decoding.registry_url, self._decoding.values, self.columns, self._ignores_extra, at
        )
        found = reader.read(values, _headers(batch))
        if not self._is_debezium:
            return *json_of_each(found), None
        keys = self._keys(batch) if self._decoding.key != "text" else [None] * len(batch)
        key_columns = [column for column in self.columns if column.is_key]
        events = events_of(found, keys, key_columns, self.where.order_path, self.where.existing.keep_where is not None)
        return events.images, events.refused, events

    def _keys(self, batch: pa.RecordBatch) -> list[Any]:
        """The keys of these records that have schemas, as values of Python or refusals."""
        form = cast("DecodeFormat", self._decoding.key if self._decoding.key in REGISTERED else "json")
        url = self._decoding.registry_url if form in REGISTERED else ""
        named = tuple(replace(column, path=column.path[-1:]) for column in self.columns if column.is_key)
        reader = records_with_schemas(url, form, named, ignores_extra=True)
        return reader.read(batch.column("key").to_pylist(), _headers(batch), "key")

    @property
    def _is_debezium(self) -> bool:
        return self.where.changes is not None and self.where.changes.feed == "debezium"

    @property
    def _ignores_extra(self) -> bool:
        return self.where.schema_evolution == "ignoreExtra"

    @cached_property
    def _lenient(self) -> frozenset[str]:
        """The columns that the record's key may have instead of its value."""
        return frozenset(column.name for column in self.columns if column.is_key and self._decoding.key)

    def _unknown(self, unknown: UnknownFieldError) -> Exception:
        *above, name = unknown.path
        path, column = ".".join(unknown.path), name.replace('"', '""')
        add = f'ALTER TABLE {self.table} ADD COLUMN "{column}" {unknown.fits}'
        if name in self.others and not above:
            remedy = f'If column {name} has a default, name it in columns, as in {{"{name}": "{name}"}}, to fill it.'
        elif len(name.encode()) > LONGEST_NAME or not is_storable(name) or not name:
            remedy = "No column can have this name."
        elif above:
            remedy = f'Add a column, for example {add}; and name it in columns, as in {{"{column}": "{path}"}}.'
        else:
            remedy = f"Add a column, for example {add}."
        error = bad_target(
            "COLUMN_UNKNOWN",
            f"A record has a field {path[:LONGEST_NAME]!r}, for which {self.table} has no column that records fill.",
            f"{remedy} Or pass over all such fields with schemaEvolution=ignoreExtra. Then start the query again.",
        )
        # The names of fields are the producer's, and may be data.
        error.kept = f"A record has a field for which {self.table} has no column that records fill."
        return error

    def _fill_keys(self, batch: pa.RecordBatch, by_name: dict[str, Any], refused: dict[int, Refusal]) -> None:
        """Take the keys that a value does not have from the record's key."""
        keys = [column for column in self.columns if column.is_key]
        lacking = sorted(
            {
                row
                for column in keys
                if by_name[column.name].null_count
                for row, is_null in enumerate(by_name[column.name].is_null().to_pylist())
                if is_null and row not in refused
            }
        )
        if not lacking:
            return
        places = pa.array(lacking, pa.int64())
        texts, unread = batch.column("key").take(places).to_pylist(), dict[int, Refusal]()
        if self._decoding.key in REGISTERED or (self._is_debezium and self._decoding.key == "json"):
            texts, unread = json_of_each(self._keys(batch.take(places)))
        found = [unread.get(row) or self._of_key(key, keys) for row, key in enumerate(texts)]
        refused |= {row: of_key for row, of_key in zip(lacking, found, strict=True) if isinstance(of_key, Refusal)}
        is_lacking = pa.array([row in set(lacking) for row in range(len(batch))])
        for number, column in enumerate(keys):
            values = [None if isinstance(of_key, Refusal) else of_key[number] for of_key in found]
            filled, unfit = made(column, values)
            refused |= {lacking[place]: why for place, why in unfit.items()}
            array = by_name[column.name]
            # Of a record whose value has some of the keys, these count.
            chosen = pc.coalesce(array.take(places), filled)
            for row, is_null in zip(lacking, chosen.is_null().to_pylist(), strict=True):
                if is_null:
                    why = Refusal(column.name, f"Neither its value nor its key has a value for {column.name}.")
                    refused.setdefault(row, why)
            by_name[column.name] = pc.replace_with_mask(array, is_lacking, chosen)

    def _of_key(self, key: bytes | None, keys: Sequence[DecodedColumn]) -> list[Any] | Refusal:
        """The values that a record's key has for these columns, None for those that it lacks."""
        if key is None:
            return [None] * len(keys)
        try:
            if self._decoding.key == "text":
                return [_of_text(key, read_as(keys[0].data_type, keys[0].form))]
            if self._decoding.key in REGISTERED and len(keys) == 1 and key[:1] != b"{":
                return [msgspec.json.decode(key, type=or_null(read_as(keys[0].data_type, keys[0].form)))]
            found = msgspec.json.decode(key, type=dict[str, msgspec.Raw])
            if has_double(key):
                return Refusal(keys[0].name, "Its key has a name twice.")
            kinds = [(found.get(column.path[-1]), or_null(read_as(column.data_type, column.form))) for column in keys]
            return [None if raw is None else msgspec.json.decode(raw, type=kind) for raw, kind in kinds]
        except MALFORMED as error:
            return Refusal(keys[0].name, f"Its key does not fit: {error}.")

    def _deletes(
        self, said: pa.Array | None, absent: pa.Array | None, count: int, refused: dict[int, Refusal]
    ) -> pa.Array:
        """Which rows delete: those without a value, and those that say so."""
        none = absent if absent is not None else pa.repeat(pa.scalar(value=False), count)
        if said is None:
            return none
        deletes = pc.if_else(none, pa.scalar(value=True), said)
        for row, is_null in enumerate(deletes.is_null().to_pylist()) if deletes.null_count else ():
            if is_null:
                refused.setdefault(row, Refusal(self._deleted or "", "It does not say whether it deletes."))
        return pc.fill_null(deletes, fill_value=False)

    def _known(self, batch: pa.RecordBatch, column: KafkaColumn, refused: dict[int, Refusal]) -> pa.Array:
        """What Kafka knows of the records, for one column."""
        if not column.what.startswith(f"{HEADERS}."):
            array = batch.column(column.what)
        else:
            name = column.what.partition(".")[2]
            # Of several with one name, the last, as Kafka's own lastHeader.
            texts = [
                next((one["value"] for one in reversed(of_row or ()) if one["key"] == name), None)
                for of_row in _headers(batch)
            ]
            array = pa.array(texts, pa.binary())
        if not isinstance(column.data_type, t.StringType) or column.what == "topic":
            return array
        texts = []
        for row, value in enumerate(array.to_pylist()):
            try:
                texts.append(None if value is None else value.decode())
            except UnicodeDecodeError:
                refused.setdefault(row, Refusal(column.name, f"Its {column.what} is not a text in UTF-8."))
                texts.append(None)
        return pa.array(texts, pa.string())


@lru_cache(maxsize=64)
def _records_for(columns: tuple[DecodedColumn, ...], ignores_extra: bool, lenient: frozenset[str]) -> JsonRecords:
    return JsonRecords(columns, ignores_extra=ignores_extra, lenient=lenient)


def _of_text(key: bytes, kind: Any) -> Any:
    """A key that is one value: bytes and texts as they are, others as JSON has them."""
    if kind is bytes:
        return key
    return key.decode() if kind is str else msgspec.json.decode(key, type=kind)


def _origins(batch: pa.RecordBatch) -> pa.Array:
    """A number for each topic and partition; two have the same one in 2**64 cases."""
    topics = batch.column("topic").dictionary_encode()
    hashes = (hashlib.blake2b(name.encode(), digest_size=8).digest() for name in topics.dictionary.to_pylist())
    by_topic = pa.array([int.from_bytes(one, "big", signed=True) for one in hashes], pa.int64())
    return pc.bit_wise_xor(by_topic.take(topics.indices), batch.column("partition").cast(pa.int64()))


def _reasons(batch: pa.RecordBatch, refused: dict[int, Refusal]) -> pa.Array:
    """Why records are refused, each with the record itself."""
    # As a number: Python has not all years, and not all names of time zones that Spark has.
    times = batch.column("timestamp").cast(pa.int64())
    headers = _headers(batch)
    said: list[dict[str, Any] | None] = [None] * len(batch)
    for row, why in refused.items():
        topic, partition, offset, key, value = (
            batch.column(name)[row].as_py() for name in ("topic", "partition", "offset", "key", "value")
        )
        named = headers[row] or ()
        # No JSON of Postgres has a NUL.
        texts = [[one["key"].replace("\0", "\ufffd"), _base64(one["value"])] for one in named]
        said[row] = {
            "column": why.column,
            "message": why.message,
            "where": f"topic {topic!r}, partition {partition}, offset {offset}",
            "key": _base64(key),
            "value": _base64(value),
            "time": str(times[row].as_py()),
            "headers": json.dumps(texts) if texts else None,
        }
    return pa.array(said, _REFUSED_TYPE)


def _of_events(events: Events) -> dict[str, pa.Array]:
    """The columns that say what events are; what has no value deletes."""
    operations = [operation or DELETES for operation in events.operations]
    return {
        OPERATION_COLUMN: pa.array(operations, pa.string()),
        BEFORE_COLUMN: pa.array(events.told, pa.string()),
        DELETED_COLUMN: pa.array([operation == DELETES for operation in operations], pa.bool_()),
    }


def _headers(batch: pa.RecordBatch) -> Sequence[Any]:
    """The headers of each record, None where there are none."""
    return batch.column(HEADERS).to_pylist() if HEADERS in batch.schema.names else [None] * len(batch)


def _base64(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()
