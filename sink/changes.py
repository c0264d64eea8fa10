"""
Read what the rows of a change feed say is to be done: ``deleteWhen``, ``_change_type``, or Debezium's envelope.

Runs in tasks, and on the driver for foreachBatch, before rows are encoded. Invariants: every row that comes out says in
one boolean column whether it deletes; an operation that is not known is refused, never guessed. Of an update, the image
after it is kept, and the one before it is dropped. From an envelope, a row is the image after its change, or for a
delete the one before it, as far as the source told it; the envelope's own columns are left behind. An error names the
column and the place of the row, and repeats no value but the operation itself.

https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-events
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
from pyspark.sql.types import ArrayType, BooleanType, DataType, MapType, StringType, StructField, StructType

from pgonce.offsets_store.errors import bad_option

from .encoding import compute as pc
from .encoding.encoded_types import VariantType
from .encoding.json_texts import READ_BY_POSTGRES, json_texts, quoted
from .errors import EncodingError
from .options.destination import BEFORE_COLUMN, CHANGE_TYPE, DELETED_COLUMN, OPERATION_COLUMN, Changes, Destination
from .options.routes import Routes
from .read_rows import RowReader


def reader_of_changes(where: Destination | Routes, struct_type: StructType) -> RowReader:
    """What reads the rows of a frame with these columns, which go ``where`` and say what is to be done there."""
    if isinstance(where, Routes) and not where.feed:
        return DeleteWhen(struct_type, where.delete_columns, where.column)
    each = [route.destination for route in where] if isinstance(where, Routes) else [where]
    changes = each[0].changes or Changes()
    if changes.feed is None:
        return DeleteWhen(struct_type, {changes.deleted: ()})
    if changes.feed != "debezium":
        return ChangeTypes(struct_type)
    # If one table has its primary key as the keys, any column may be one.
    keys = {name.lower() for to in each for name in to.keys} if all(to.keys for to in each) else ()
    route = where.column if isinstance(where, Routes) else None
    return Envelope(struct_type, each[0].order_by, frozenset(keys), route)


_SAY_IT = "Make the condition true or false for every row, for example coalesce(op = 'd', false)."
_WRITES, _DELETES, _BEFORE = ("insert", "update_postimage"), "delete", "update_preimage"


@dataclass(frozen=True)
class DeleteWhen:
    """
    Rows with boolean ``columns`` that say whether they delete.

    If there are several, ``route`` decides: each is used for the values of ``route`` that are listed with it.
    """

    struct_type: StructType
    columns: Mapping[str, tuple[str, ...]]
    route: str | None = None
    drops_rows = False

    def __post_init__(self) -> None:
        for column in self.columns:
            _require_column(self.struct_type, column, BooleanType)

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows; one that does not say whether it deletes is refused."""
        for column, of in self.columns.items():
            says = batch.column(column)
            known = says.is_valid()
            if self.route is not None:
                values = pc.cast(batch.column(self.route), pa.string())
                known = pc.or_(known, pc.invert(pc.is_in(values, value_set=pa.array(of, pa.string()))))
            _refuse_unknown(column, says, known, _SAY_IT)
        return batch


@dataclass(frozen=True)
class ChangeTypes:
    """The change feed of a Delta table, or of Spark."""

    of: StructType
    drops_rows = True

    def __post_init__(self) -> None:
        _require_column(self.of, CHANGE_TYPE, StringType)

    @property
    def struct_type(self) -> StructType:
        """The frame's columns, and :data:`DELETED_COLUMN`."""
        return _with_deleted(self.of)

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows without the images before updates."""
        operations = batch.column(CHANGE_TYPE)
        deletes, before = pc.equal(operations, _DELETES), pc.equal(operations, _BEFORE)
        writes = _among(operations, _WRITES)
        known = pc.fill_null(pc.or_(pc.or_(deletes, before), writes), fill_value=False)
        _refuse_unknown(
            CHANGE_TYPE, operations, known, "Leave such rows out in Spark, or compute a column for deleteWhen."
        )
        marked = batch.append_column(DELETED_COLUMN, deletes)
        return marked.filter(pc.invert(before)) if pc.any(before, min_count=0).as_py() else marked


def _among(operations: pa.Array, known: Sequence[str]) -> pa.Array:
    """
    Whether each operation is one of those that are ``known``.

    Their array is made here, because pyarrow imports pandas for the first one that is made of a list, and most
    processes that import this module never need that.
    """
    return pc.is_in(operations, value_set=pa.array(known, operations.type))


def _with_deleted(struct_type: StructType) -> StructType:
    """These columns and :data:`DELETED_COLUMN`."""
    return StructType([*struct_type.fields, StructField(DELETED_COLUMN, BooleanType(), nullable=False)])


def _require_column(struct_type: StructType, name: str, data_type: type[DataType]) -> None:
    """:raises ConfigurationError: CHANGE_COLUMNS, if there is no such column, or if it has another type."""
    field = next((field for field in struct_type.fields if field.name == name), None)
    if field is None or not isinstance(field.dataType, data_type):
        found = f"is {field.dataType.simpleString()}" if field else "is missing in the frame"
        raise bad_option(
            "CHANGE_COLUMNS",
            f"Column {name!r}, which holds the operation of each row, {found}; it must be {data_type.typeName()}.",
            "Compute it in Spark, for example withColumn('is_deleted', expr(\"op = 'd'\")), and name it in deleteWhen.",
        )


def _refuse_unknown(column: str, operations: pa.Array, known: pa.Array, remedy: str) -> None:
    """:raises EncodingError: CHANGE_UNKNOWN, if ``known`` is not true for all operations."""
    if not pc.all(known, min_count=0).as_py():
        row = known.index(pa.scalar(value=False)).as_py()
        raise EncodingError.usual(
            "CHANGE_UNKNOWN",
            f"Column {column!r} {_in_row(row)} is {_shown(operations[row])}, which is not a known operation.",
            remedy,
        )


def _in_row(row: int) -> str:
    """Where the row is, as far as a task knows."""
    return f"in row {row + 1} of one of its task's Arrow batches"


def _shown(value: pa.Scalar) -> str:
    if not value.is_valid:
        return "null"
    if not pa.types.is_string(value.type) and not pa.types.is_large_string(value.type):
        return repr(value.as_py())
    # Spark does not look at what it casts from binary to string.
    return repr(value.as_buffer().to_pybytes().decode(errors="replace"))[:40]


_NESTED = (StructType, ArrayType, MapType, VariantType)
_OPERATION, _KEY = "op", "key"
_ENVELOPE = frozenset({"before", "after", "source", _OPERATION, "ts_ms", "ts_us", "ts_ns", "transaction"})
_WRITES_OF_DEBEZIUM, _DELETES_OF_DEBEZIUM, _UPDATES = ("c", "r", "u"), "d", "u"
# No key in Postgres has a NUL, and other values of an old row need not be whole.
_OF_OLD_ROWS = replace(READ_BY_POSTGRES, text=lambda text: quoted(text.replace("\0", "")))
_REMEDY = (
    "The known operations are c, r, u and d. Filter tombstones out before from_json (where value is not null). A "
    "record that does not fit the schema of from_json also gives null. A truncate (t) must be repeated by hand."
)


@dataclass(frozen=True)
class Envelope:
    """
    The columns ``before``, ``after`` and ``op`` of Debezium's events, and those that the user has added.

    :param of: the frame's columns.
    :param order_by: the field that orders changes, which may be one of the envelope's: ``source.lsn``.
    :param keys: the keys of the tables in small letters; empty if any column may be one.
    :param route: the column that chooses the table.
    """

    of: StructType
    order_by: str | None
    keys: frozenset[str] = frozenset()
    route: str | None = None
    drops_rows = False

    def __post_init__(self) -> None:
        _require_column(self.of, "after", StructType)
        _require_column(self.of, "before", StructType)
        _require_column(self.of, _OPERATION, StringType)

    @cached_property
    def struct_type(self) -> StructType:
        """The columns of ``after``, those that the user has added, the order, and the operation."""
        fields = [*self._image, *self._beside]
        path, data_type = self._order
        if path:
            fields.append(StructField(path[-1], data_type or StringType()))
        fields += [StructField(OPERATION_COLUMN, StringType()), StructField(BEFORE_COLUMN, StringType())]
        return _with_deleted(StructType(fields))

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows, each as one image."""
        operations = batch.column(_OPERATION)
        deletes = pc.equal(operations, _DELETES_OF_DEBEZIUM)
        known = pc.or_(deletes, _among(operations, _WRITES_OF_DEBEZIUM))
        _refuse_unknown(_OPERATION, operations, pc.fill_null(known, fill_value=False), _REMEDY)
        after, before = batch.column("after"), batch.column("before")
        _refuse_missing(deletes, after, before)
        arrays = [_either(deletes, before, after, field.name) for field in self._image]
        arrays += [batch.column(field.name) for field in self._beside]
        path, _ = self._order
        if path:
            arrays.append(_at(batch, path))
        told = self._told(batch, operations)
        return pa.RecordBatch.from_arrays([*arrays, operations, told, deletes], names=self.struct_type.names)

    def _told(self, batch: pa.RecordBatch, operations: pa.Array) -> pa.Array:
        """As JSON, where an update may have changed a key: what the row before it had in keys, and the record's key."""
        before, after, record_key = batch.column("before"), batch.column("after"), self._record_key
        updates = pc.and_(pc.equal(operations, _UPDATES), pc.or_(before.is_valid(), pa.scalar(record_key is not None)))
        told, fields = pa.nulls(len(batch), pa.string()), [field for field in self._image if self._may_be_key(field)]
        if not fields or not pc.any(updates, min_count=0).as_py():
            return told
        before, after = before.filter(updates), after.filter(updates)
        old, new = _texts(before, fields, after), _texts(after, fields, after)
        if route := [field for field in fields if field.name == self.route]:
            pairs = zip(_texts(before, route, after), _texts(after, route, after), strict=True)
            if any(row not in (None, now) for row, now in pairs):
                raise EncodingError.usual(
                    "KEY_CHANGED",
                    f"An update changes {self.route!r}, which route names, so that the old row is in another table.",
                    "In Spark, make two rows of such a change: a delete (op d) with its before, and an insert (op c) "
                    "with its after. Or route by a column that no update changes, such as the name of the source's "
                    "table.",
                )
        keys = json_texts(batch.column(_KEY).filter(updates), record_key) if record_key else [None] * len(old)
        texts = [
            None if row == now and self._compares_all_keys else f'{{"row":{row or "null"},"key":{key or "{}"}}}'
            for row, now, key in zip(old, new, keys, strict=True)
        ]
        return pc.replace_with_mask(told, updates, pa.array(texts, pa.string()))

    def _may_be_key(self, field: StructField) -> bool:
        is_meant = field.name == self.route or not self.keys or field.name.lower() in self.keys
        return is_meant and not isinstance(field.dataType, _NESTED)

    @cached_property
    def _compares_all_keys(self) -> bool:
        """Whether no key is nested, or a column that the user has added: nothing tells what these were before."""
        plain = {field.name.lower() for field in self._image if not isinstance(field.dataType, _NESTED)}
        return self.keys <= plain if self.keys else len(plain) == len(self._image)

    @cached_property
    def _record_key(self) -> StructType | None:
        """The key of the record in Kafka, if the frame has it as a struct."""
        found = next((field.dataType for field in self.of.fields if field.name == _KEY), None)
        return found if isinstance(found, StructType) else None

    @property
    def _image(self) -> list[StructField]:
        after = next(field.dataType for field in self.of.fields if field.name == "after")
        return list(after.fields) if isinstance(after, StructType) else []

    @property
    def _beside(self) -> list[StructField]:
        mine = _ENVELOPE | {_KEY} if self._record_key else _ENVELOPE
        return [field for field in self.of.fields if field.name not in mine]

    @cached_property
    def _order(self) -> tuple[list[str], DataType | None]:
        """The path of the order column into the envelope, if it is there, and its type."""
        names = {field.name for field in (*self._image, *self._beside)}
        path = self.order_by.split(".") if self.order_by else []
        if not path or self.order_by in names or path[0] not in _ENVELOPE:
            return [], None
        data_type: DataType = self.of
        for name in path:
            found = data_type.fields if isinstance(data_type, StructType) else []
            field = next((field for field in found if field.name == name), None)
            if field is None:
                raise bad_option(
                    "CHANGE_COLUMNS",
                    f"orderBy={self.order_by!r} names a field that the envelope does not have.",
                    "Give from_json a schema that has it, or name another field, such as source.lsn or ts_ms.",
                )
            data_type = field.dataType
        if path[-1] in names:
            raise bad_option(
                "CHANGE_COLUMNS",
                f"orderBy={self.order_by!r} would become column {path[-1]!r}, which the rows already have.",
                "Add the order to the frame as a column with another name, and set orderBy to that name.",
            )
        return path, data_type


def _refuse_missing(deletes: pa.Array, after: pa.Array, before: pa.Array) -> None:
    for image, column, why, remedy in (
        (pc.if_else(deletes, before.is_valid(), True), "before", "but the operation is a delete",
         "Let the source send the keys of deleted rows: give its table a primary key, or REPLICA IDENTITY FULL."),
        (pc.if_else(deletes, True, after.is_valid()), "after", "but the operation is not a delete",
         "Check that the schema given to from_json is that of the events."),
    ):  # fmt: skip
        if not pc.all(image, min_count=0).as_py():
            where = _in_row(image.index(pa.scalar(value=False)).as_py())
            raise EncodingError.usual("CHANGE_UNKNOWN", f"Column {column!r} {where} is null, {why}.", remedy)


def _either(deletes: pa.Array, before: pa.StructArray, after: pa.StructArray, name: str) -> pa.Array:
    """The field ``name`` of ``before`` where a row deletes, and of ``after`` elsewhere."""
    written = pc.struct_field(after, name)
    if before.type.get_field_index(name) < 0 or not pc.any(deletes, min_count=0).as_py():
        return written
    # Not if_else, which does not know every type.
    rows = pa.array(range(len(after)), pa.int64())
    chosen = pc.if_else(deletes, pc.add(rows, len(after)), rows)
    return pa.concat_arrays([written, _field_of(before, name, written.type)]).take(chosen)


def _field_of(before: pa.StructArray, name: str, as_type: pa.DataType) -> pa.Array:
    if before.type.get_field_index(name) < 0:
        return pa.nulls(len(before), as_type)
    found = pc.struct_field(before, name)
    return found if found.type == as_type else found.cast(as_type)


def _texts(image: pa.StructArray, fields: list[StructField], after: pa.StructArray) -> list[str | None]:
    arrays = [_field_of(image, field.name, after.type.field(field.name).type) for field in fields]
    some = pa.StructArray.from_arrays(arrays, [field.name for field in fields], mask=image.is_null())
    return json_texts(some, StructType(fields), _OF_OLD_ROWS)


def _at(batch: pa.RecordBatch, path: list[str]) -> pa.Array:
    array = batch.column(path[0])
    return pc.struct_field(array, path[1:]) if path[1:] else array
