"""
How was a row that was put aside to be written?

Pure: runs in the commit that puts rows aside, and in their replay. Invariant: what is recalled is what was recorded, or
an error; nothing in it becomes part of a statement unless it is one of the words that pgonce itself writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast, get_args

from pyspark.sql import types as t

from pgonce.offsets_store.errors import UNCHANGED, RecoveryError
from pgonce.sink.by_key import ChangeFeed, Changes, Deletes, Existing, OnConflict
from pgonce.sink.encoding.encoded_types import EncodedColumn
from pgonce.sink.settings import Destination, Mode, SchemaEvolution

VERSION = 1
"""A reader that does not know it cannot replay the letter."""
ASIDE = "aside"
"""What has the names of the columns that are not of the row; letters of an earlier pgonce lack it."""

# Types become part of statements as they are, and letters may have been written by a role that may do less than the one
# that replays them.
_POSTGRES_TYPE = re.compile(r"(bool|int2|int4|int8|float4|float8|text|bytea|date|timestamptz|timestamp|interval|numeric|time|jsonb)(\[\])?")  # fmt: skip # noqa: E501
_DDL_TYPE = re.compile(r"[a-z]+( precision)?(\(\d{1,8}(,\d{1,4})?\))?(\[\])?")


def recorded(destination: Destination, columns: Sequence[EncodedColumn], oid: int | None = None) -> dict[str, Any]:
    """
    What a replay needs to know, as JSON.

    ``destination.table`` must have its schema, and the quotes that SQL needs: a replay may find another search_path.
    Where dead letters go is left out, because a replay puts none aside. By its ``oid`` the table is known even if its
    name means another one later on.
    """
    return {
        "version": VERSION,
        "table": destination.table,
        "oid": oid,
        "mode": destination.mode,
        "keys": list(destination.keys),
        "order_by": destination.order_by,
        "create_table": destination.create_table,
        "schema_evolution": destination.schema_evolution,
        "changes": asdict(destination.changes) if destination.changes else None,
        "existing": {**asdict(destination.existing), "update_columns": list(destination.existing.update_columns)},
        ASIDE: sorted(destination.aside),
        "columns": [_recorded_column(column) for column in columns],
    }


def recalled(value: Any) -> tuple[Destination, tuple[EncodedColumn, ...]]:
    """
    The destination and the columns that :func:`recorded` has written down.

    :raises RecoveryError: REPLAY_IMPOSSIBLE, where nothing was, or by a newer pgonce, or somebody has changed it.
    """
    if not isinstance(value, Mapping) or not value:
        raise _impossible("it is not recorded how the row was to be written")
    if value.get("version") != VERSION:
        raise _impossible(
            f"how the row was to be written is recorded in version {value.get('version')!r}, and this pgonce knows "
            f"version {VERSION}"
        )
    try:
        return _recalled_destination(value), tuple(_recalled_column(column) for column in value["columns"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _impossible(f"what is recorded about how the row was to be written makes no sense ({error!r})") from error


def recorded_oid(value: Mapping[str, Any]) -> int | None:
    """
    The oid of the table that :func:`recorded` has written down; None where it has not, as older versions did not.

    :raises RecoveryError: REPLAY_IMPOSSIBLE, where somebody has changed it.
    """
    oid = value.get("oid")
    if oid is not None and type(oid) is not int:
        raise _impossible(f"what is recorded of its table makes no sense (the oid {oid!r})")
    return oid


def _recorded_column(column: EncodedColumn) -> dict[str, Any]:
    # As a field of a struct, because there Spark keeps the collations of texts.
    data_type = t.StructType([t.StructField("type", column.data_type)]).jsonValue() if column.data_type else None
    return {
        "name": column.name,
        "spark_type": column.spark_type,
        "postgres_type": column.postgres_type,
        "ddl_type": column.ddl_type,
        "data_type": data_type,
    }


def _recalled_column(value: Mapping[str, Any]) -> EncodedColumn:
    data_type = value["data_type"]
    return EncodedColumn(
        _text(value["name"]),
        _text(value["spark_type"]),
        _matching(_POSTGRES_TYPE, value["postgres_type"]),
        _matching(_DDL_TYPE, value["ddl_type"]),
        None if data_type is None else t.StructType.fromJson(data_type)["type"].dataType,
    )


def _recalled_destination(value: Mapping[str, Any]) -> Destination:
    changes, existing = value["changes"], value["existing"]
    return Destination(
        _text(value["table"]),
        cast("Mode", _one_of(get_args(Mode), value["mode"])),
        tuple(map(_text, value["keys"])),
        _text_or_none(value["order_by"]),
        _boolean(value["create_table"]),
        cast("SchemaEvolution", _one_of(get_args(SchemaEvolution), value["schema_evolution"])),
        None if changes is None else _recalled_changes(changes),
        _recalled_existing(existing),
        aside=frozenset(map(_text, value.get(ASIDE, ()))),
    )


def _recalled_changes(value: Mapping[str, Any]) -> Changes:
    feed = value["feed"]
    return Changes(
        _text_or_none(value["delete_when"]),
        None if feed is None else cast("ChangeFeed", _one_of(get_args(ChangeFeed), feed)),
        _boolean(value["all_delete"]),
        cast("Deletes", _one_of(get_args(Deletes), value["deletes"])),
        _text_or_none(value["soft_column"]),
    )


def _recalled_existing(value: Mapping[str, Any]) -> Existing:
    days = value["tombstone_days"]
    if not isinstance(days, int) or days < 1:
        raise ValueError(days)
    return Existing(
        cast("OnConflict", _one_of(get_args(OnConflict), value["on_conflict"])),
        _boolean(value["only_newer"]),
        days,
        tuple(map(_text, value["update_columns"])),
        _text_or_none(value["keep_where"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _one_of(words: Sequence[str], value: Any) -> str:
    if value not in words:
        raise ValueError(value)
    return cast("str", value)


def _matching(pattern: re.Pattern[str], value: Any) -> str:
    if not pattern.fullmatch(_text(value)):
        raise ValueError(value)
    return cast("str", value)


def _impossible(why: str) -> RecoveryError:
    return RecoveryError(
        "REPLAY_IMPOSSIBLE",
        f"It cannot be replayed: {why}.",
        UNCHANGED,
        "Write what is needed of the row into its table with SQL, and take the letter out with "
        "`pgonce dead-letters --discard`. If a newer pgonce has put the row aside, replay it with that one.",
    )
