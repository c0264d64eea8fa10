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
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t

from pgonce.offsets_store.errors import bad_target
from pgonce.offsets_store.postgres.text import LONGEST_NAME

from ..encoding import compute as pc
from ..encoding.unfit_rows import REFUSED, Record
from ..options.destination import (
    BEFORE_COLUMN,
    DELETED_COLUMN,
    OFFSET_COLUMN,
    OPERATION_COLUMN,
    ORIGIN_COLUMN,
    Decoding,
    Destination,
)
from ..options.position_columns import RECORD_POSITIONS
from .debezium_events import AFTER, DELETES, Event, events_of
from .fields import DecodedColumn, KafkaColumn, UnknownFieldError, may_be_named
from .json_records import json_records
from .record_keys import HEADERS, RecordKeys, headers_of
from .records_with_schemas import RecordsWithSchemas, json_of_each, last_header
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
RESERVED = frozenset(
    {*RECORD_POSITIONS.names, OFFSET_COLUMN, ORIGIN_COLUMN, DELETED_COLUMN, REFUSED, OPERATION_COLUMN, BEFORE_COLUMN}
)
"""The names of columns that decoded rows have besides those of the table."""
_REFUSED_TYPE = pa.struct([(name, pa.string()) for name in ("column", "message", "where", *Record._fields)])


@dataclass(frozen=True)
class RecordReader:
    """
    Decodes records for the columns of ``table``, which is its name as SQL has it.

    :param columns: those that get fields; :param of_kafka: those that get what Kafka knows.
    :param refuses: the names of columns that get neither, if fields that the table lacks are passed over; else None.
    """

    where: Destination
    columns: tuple[DecodedColumn, ...]
    of_kafka: tuple[KafkaColumn, ...]
    table: str
    with_positions: bool = True
    refuses: frozenset[str] | None = None

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
            decoded = json_records(self.columns, refuses=self.refuses).decode(values)
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
            self._keys.fill(batch, by_name, refused)
        for column in self.of_kafka:
            by_name[column.name] = self._known(batch, column, refused)
        if events is not None:
            by_name |= _of_events(events)
        elif self._deleted:
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

    def _values(self, batch: pa.RecordBatch) -> tuple[list[bytes | None], dict[int, Refusal], list[Event] | None]:
        """The values as JSON, those that are none, and if they are Debezium's events, what these say."""
        values = batch.column("value").to_pylist()
        if not (self._decoding.registry_url or self._is_debezium):
            return values, {}, None
        at = (AFTER,) if self._is_debezium else ()
        url, form = self._decoding.registry_url, self._decoding.values
        reader = RecordsWithSchemas(url, form, self.columns, refuses=self.refuses, at=at)
        found = reader.read(values, headers_of(batch))
        if not self._is_debezium:
            return *json_of_each(found), None
        keeps = self.where.existing.keep_where is not None
        keys = self._keys.values(batch)
        events, refused = events_of(found, keys, self._keys.columns, self.where.order_path, keeps)
        # So that the commit can also read them by their types.
        before = self._keys.unfit([event.before for event in events])
        refused |= {row: Refusal(of.column, f"Of the row before: {of.message}") for row, of in before.items()}
        return [event.image for event in events], refused, events

    @cached_property
    def _keys(self) -> RecordKeys:
        columns = tuple(column for column in self.columns if column.is_key)
        return RecordKeys(self._decoding, columns, self._is_debezium)

    @property
    def _is_debezium(self) -> bool:
        return self.where.changes is not None and self.where.changes.feed == "debezium"

    def _unknown(self, unknown: UnknownFieldError) -> Exception:
        name, path = unknown.path[-1], ".".join(unknown.path)
        column, remedy = name.replace('"', '""'), "No column can have this name."
        others = " Or pass over all such fields with schemaEvolution=ignoreExtra."
        if self.refuses is not None:
            others = ""
            remedy = (
                "The column of this name is left to Postgres, or takes no field. If records are to fill it, name it in "
                f'columns, as in {{"{name}": "{name}"}}; if not, rename it.'
            )
        elif may_be_named(name):
            remedy = (
                f'Add a column, for example ALTER TABLE {self.table} ADD COLUMN "{column}" {unknown.fits}; or choose '
                "one that is there. If it has a default, or is not called as the whole path of the field, name it in "
                f'columns, as in {{"{column}": "{path}"}}.'
            )
        error = bad_target(
            "COLUMN_UNKNOWN",
            f"A record has a field {path[:LONGEST_NAME]!r}, for which {self.table} has no column that records fill.",
            f"{remedy}{others} Then start the query again.",
        )
        # The names of fields are the producer's, and may be data.
        error.kept = f"A record has a field for which {self.table} has no column that records fill."
        return error

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
            array = pa.array([last_header(of_row, name) for of_row in headers_of(batch)], pa.binary())
        if not isinstance(column.data_type, t.StringType) or column.what == "topic":
            return array
        texts, unfit = made(DecodedColumn(column.name, (column.what,), column.data_type), array.to_pylist())
        refused.update({**unfit, **refused})
        return texts


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
    headers = headers_of(batch)
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


def _of_events(events: Sequence[Event]) -> dict[str, pa.Array]:
    """The columns that say what events are; what has no value deletes."""
    operations = [event.operation or DELETES for event in events]
    return {
        OPERATION_COLUMN: pa.array(operations, pa.string()),
        BEFORE_COLUMN: pa.array([event.told for event in events], pa.string()),
        DELETED_COLUMN: pa.array([operation == DELETES for operation in operations], pa.bool_()),
    }


def _base64(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()
