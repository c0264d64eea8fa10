"""
Which columns of the table get a field of the record, and as what each field is read.

Runs where a batch is planned. Invariant: the type of the table's column decides how a field is read. A column that
Postgres fills (generated, or with a default) is left to it unless the user names the column, so a record that has such
a field is refused, and its value is never left out in silence.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import psycopg
from pyspark.sql import types as t

from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.errors import bad_option, bad_target
from pgonce.offsets_store.postgres.backoff import Tries
from pgonce.offsets_store.postgres.refused_rows import target_error

from ..encoding.encoded_types import MOST_DIGITS, PLAIN, encoded_column
from ..options.definitions import BY_KEY, KeyFormat
from ..options.destination import DELETED_COLUMN, Changes, Destination
from ..writing.first_look import looking
from ..writing.table.catalogue import TargetColumn, TargetTable, look_up_table
from ..writing.table.fit import Fit, element_of
from ..writing.table.fit_column import fit_column
from .debezium_events import AFTER
from .fields import DecodedColumn, Form, KafkaColumn
from .record_keys import HEADERS
from .record_reader import OF_KAFKA, RESERVED, RecordReader
from .schema_registry import registry_at
from .schemas import DECODED_FOR, kind_of_column

_log = logging.getLogger("pgonce")


def described(settings: CommitSettings, where: Destination) -> TargetTable | None:
    """
    Ask Postgres what the table is; try it again for ``retry_timeout`` if the server does not answer.

    None if it is not there, and is to be created.

    :raises TargetError: TARGET_MISSING.
    :raises ConnectError: if Postgres cannot be asked.
    """
    tries = Tries(settings.retry_timeout, log=_log, trying=f"looking at {where.table} again", failed=_failed)
    while True:
        with tries, looking(settings.url) as connection:
            found, table = look_up_table(connection, where.table)
            if table is not None or where.create_table:
                return table
            raise bad_target(
                "TARGET_MISSING",
                f"There is no table {found.qualified_name}.",
                "Create it: pgonce.topic_to_table shows a CREATE TABLE that would hold the first records. With a "
                "schema registry, createTable makes it.",
            )


def _failed(error: Exception) -> Exception:
    return target_error(error) if isinstance(error, psycopg.Error) else error


def _of_schemas(where: Destination) -> tuple[DecodedColumn, ...]:
    """The columns for the fields of the subjects that the user names, with the types of the newest versions."""
    decoding = where.decoding
    if decoding is None or not decoding.subjects:
        return ()
    registry = registry_at(decoding.registry_url)
    at = (AFTER,) if where.changes and where.changes.feed else ()
    # Of Protobuf, the first message of the file.
    schemas = [schema.message((0,)) for one in decoding.subjects for schema in registry.versions(one, decoding.values)]
    paths = {name: tuple(path.split(".")) for name, path in decoding.paths}
    taken = {path[0] for path in paths.values()}
    names = dict.fromkeys(name for schema in schemas for name in schema.fields(at) if name not in taken)
    found = []
    for name, path in ({name: (name,) for name in names} | paths).items():
        # Of versions that differ, the newest counts: what it does not take is refused record by record.
        kinds = next((kinds for schema in reversed(schemas) if (kinds := schema.kinds((*at, *path)))), [])
        kind = kind_of_column(kinds)
        decoded_for = DECODED_FOR.get(kind.form, "")
        is_key = name in where.keys
        found.append(DecodedColumn(name, path, kind.data_type, kind.form, is_key=is_key, decoded_for=decoded_for))
    found = [column for column in found if column.name not in dict(decoding.kafka)]
    _refuse_reserved(where.table, (column.name for column in found))
    return tuple(found)


def reader_for(table: TargetTable | None, where: Destination, *, with_positions: bool) -> RecordReader:
    """
    What decodes records for this table, which is None if it is to be created.

    :raises ConfigurationError: BAD_OPTION.
    :raises TargetError: as :func:`columns_of`.
    """
    known = kafka_columns_of(table, where)
    if table is None:
        refuses = _refused(where, ())
        return RecordReader(where, _of_schemas(where), known, where.table, with_positions, refuses)
    found = columns_of(table, where)
    filled = {column.name for column in found} | {column.name for column in known}
    refuses = _refused(where, [of.column_name for of in table.columns if of.column_name not in filled])
    if where.schema_evolution == "addColumns":
        there = {column.column_name for column in table.columns}
        found += tuple(column for column in _of_schemas(where) if column.name not in there)
    if where.decoding and where.decoding.key:
        _refuse_keys(table, [column for column in found if column.is_key], where.decoding.key)
    name = table.identifier.as_string(None)
    return RecordReader(where, found, known, name, with_positions, refuses)


def _refused(where: Destination, others: Sequence[str]) -> frozenset[str] | None:
    """
    Which fields without a column that records fill are refused, although ``others`` has their names; None if all are.

    :raises TargetError: TYPE_MISMATCH, if it could not be told whether a record has such a field.
    """
    if where.schema_evolution != "ignoreExtra":
        return None
    if odd := next(filter(_ODD.search, others), None):
        what = f"{where.table} has a column {odd!r}, and with schemaEvolution=ignoreExtra its field would be lost."
        raise bad_target("TYPE_MISMATCH", what, "Rename the column, or use another schemaEvolution.")
    return frozenset(others)


def _refuse_keys(table: TargetTable, keys: Sequence[DecodedColumn], form: KeyFormat) -> None:
    """:raises ConfigurationError: BAD_OPTION, for keys that a record's key cannot have."""
    names, what = [column.path[-1] for column in keys], ""
    if form == "text" and len(keys) > 1:
        what = f"decodeKey=text reads one key, and {table.qualified_name} has {', '.join(names)}."
    elif len(set(names)) < len(names):
        what = f"Two keys of {table.qualified_name} would get one field of a record's key ({', '.join(names)})."
    elif any(column.is_nested for column in keys):
        what = f"A key of {table.qualified_name} is an array or an hstore, which is not read from a record's key."
    if what:
        remedy = "Set decodeKey=json if it is a JSON object with a field of its own for each of them."
        raise bad_option("BAD_OPTION", what, remedy)


def columns_of(table: TargetTable, where: Destination) -> tuple[DecodedColumn, ...]:
    """
    The columns that are decoded.

    :raises TargetError: COLUMN_UNKNOWN, if an option names a column that the table lacks; TYPE_MISMATCH, if it names
        one that no field can be read for.
    """
    decoding = where.decoding
    paths = dict(decoding.paths) if decoding else {}
    of_kafka = dict(decoding.kafka) if decoding else {}
    for name in (*paths, *of_kafka):
        if name not in {column.column_name for column in table.columns}:
            raise bad_target(
                "COLUMN_UNKNOWN",
                f"{table.qualified_name} has no column {name!r}, which columns or kafkaColumns names.",
                f"Its columns are {', '.join(column.column_name for column in table.columns)}.",
            )
    _refuse_reserved(table.qualified_name, (column.column_name for column in table.columns))
    changes = where.changes or Changes()
    keys = (where.keys or table.primary_key) if where.mode in BY_KEY else ()
    if changes.feed and (of_no_field := set(keys) & set(of_kafka)):
        what = f"{min(of_no_field)} is a key of {table.qualified_name}, and kafkaColumns fills it."
        raise bad_option("BAD_OPTION", what, "With changeFeed, keys are fields of the events: name others in keys.")
    # Where a field says which rows delete, whether others are missing is left to Postgres: a delete needs none of them.
    has_deletes = changes.delete_when or changes.feed
    unneeded = {column.column_name for column in table.columns} if has_deletes else {changes.soft_column}
    if decoding and decoding.key:
        # The record's key may have them.
        unneeded |= set(keys)
    found = [
        decoded
        for column in table.columns
        if column.column_name not in of_kafka
        and (decoded := _decoded(table, column, paths, where, is_key=column.column_name in keys)) is not None
    ]
    found = [replace(column, required=False) if column.name in unneeded else column for column in found]
    if changes.delete_when not in (None, DELETED_COLUMN):
        found = _with_deleted(found, changes.deleted, of_kafka)
    order = where.order_path[-1:]
    if order and order[0] not in {column.name for column in found}:
        found.append(DecodedColumn(order[0], order, t.LongType()))
    if not found and not of_kafka:
        raise bad_target(
            "COLUMN_UNKNOWN",
            f"{table.qualified_name} has no column that a record fills: all have defaults, or no field fits them.",
            'Name some in columns, for example {"id": "id"}.',
        )
    _refuse_shared(found)
    return tuple(found)


def _refuse_reserved(table: str, names: Iterable[str]) -> None:
    for name in RESERVED.intersection(names):
        what = f"{table} has a column {name}, and decoded rows have one of this name for another use."
        raise bad_target("COLUMN_TWICE", what, "Rename the column.")


def _with_deleted(columns: list[DecodedColumn], name: str, of_kafka: Collection[str]) -> list[DecodedColumn]:
    """The columns, among which is the one that says which rows delete; the table need not have it."""
    same = next((column for column in columns if column.name == name), None)
    if _ODD.search(name) or name in of_kafka or (same and not isinstance(same.data_type, t.BooleanType)):
        what = f"deleteWhen={name!r} does not name a field that is true or false."
        raise bad_option("BAD_OPTION", what, "Name another one, or compute the condition in Spark.")
    return columns if same else [*columns, DecodedColumn(name, (name,), t.BooleanType())]


def _refuse_shared(columns: Sequence[DecodedColumn]) -> None:
    """:raises ConfigurationError: BAD_OPTION, if two columns get one field, or one gets a part of another's."""
    by_path: dict[tuple[str, ...], DecodedColumn] = {}
    for column in sorted(columns, key=lambda column: len(column.path)):
        for depth in range(1, len(column.path) + 1):
            if (other := by_path.get(column.path[:depth])) is not None:
                raise bad_option(
                    "BAD_OPTION",
                    f"Column {column.name!r} gets the field {'.'.join(column.path)!r}, which column {other.name!r} "
                    "gets already, alone or within an object.",
                    "Name another field for one of them in columns.",
                )
        by_path[column.path] = column


_KNOWN = {name: data_type for name, data_type in OF_KAFKA.items() if name != "value"}


def kafka_columns_of(table: TargetTable | None, where: Destination) -> tuple[KafkaColumn, ...]:
    """
    The columns that get what Kafka knows of a record; ``table`` is None if it is to be created.

    :raises ConfigurationError: BAD_OPTION, for something that Kafka does not know.
    """
    found = []
    for name, what in where.decoding.kafka if where.decoding else ():
        if what not in _KNOWN and not what.startswith(f"{HEADERS}."):
            raise bad_option(
                "BAD_OPTION",
                f"kafkaColumns has {what!r} for {name!r}, which is nothing that Kafka knows of a record.",
                f"Use {', '.join(_KNOWN)}, or headers.<name>.",
            )
        data_type = _KNOWN.get(what, t.BinaryType())
        is_bytes = isinstance(data_type, t.BinaryType)
        takes_bytes = table is not None and any(c.base_type == "bytea" for c in table.columns_named(name))
        found.append(KafkaColumn(name, what, t.StringType() if is_bytes and not takes_bytes else data_type))
    return tuple(found)


def _decoded(
    table: TargetTable, column: TargetColumn, paths: Mapping[str, str], where: Destination, *, is_key: bool
) -> DecodedColumn | None:
    name = column.column_name
    is_named = name in paths or ((is_key or name == where.order_by) and not column.generated)
    if (column.generated or column.has_default) and not is_named:
        return None
    path = tuple(paths[name].split(".")) if name in paths else (name,)
    # msgspec has no fields of other names.
    chosen = None if any(_ODD.search(part) or not part for part in path) else _chosen(column)
    if chosen is None:
        if name not in paths and not column.required:
            return None
        raise bad_target(
            "TYPE_MISMATCH",
            f"Column {name!r} of {table.qualified_name} is {column.full_type}, for which no field of a record can be "
            "read.",
            "Give the column another type, or write it from a frame (page `types` of the documentation).",
        )
    data_type, form = chosen
    return DecodedColumn(name, path, data_type, form, column.not_null, is_key, column.full_type)


_ODD = re.compile(r'["\\\x00-\x1f]')
_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")
_JSON = ("json", "jsonb")


def _chosen(column: TargetColumn) -> tuple[t.DataType, Form] | None:
    """As what a field travels to this column, and how it is read; None if no field fits."""
    base, is_array = element_of(column.base_type), column.base_type.endswith("[]")
    found, form = column.user_type, Form.VALUE
    data_type: t.DataType = PLAIN.get(base, t.StringType())
    if base in _JSON:
        form = Form.JSON
    elif base == "numeric":
        digits = _NUMERIC.fullmatch(column.full_type.removesuffix("[]"))
        if digits and int(digits[2]) <= int(digits[1]) <= MOST_DIGITS:
            data_type = t.DecimalType(int(digits[1]), int(digits[2]))
        else:
            form = Form.DIGITS
    elif found and found.is_of("vector", "vector"):
        data_type = t.ArrayType(t.FloatType())
    elif found and found.is_of("hstore", "hstore"):
        data_type = t.MapType(t.StringType(), t.StringType())
    if is_array:
        if form is Form.JSON or base == "bytea":
            return None
        data_type = t.ArrayType(data_type)
    is_refused = fit_column(encoded_column(column.column_name, data_type), column).fit is Fit.REFUSED
    return None if is_refused else (data_type, form)
