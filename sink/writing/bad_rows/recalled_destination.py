"""
Read from JSON how a row that was put aside was to be written (:mod:`~pgonce.sink.writing.recorded_destination`).

Pure: runs in the replay of letters, and where a stored destination is looked at. Invariant: nothing in a letter is
trusted, because roles with fewer permissions than the one that replays can write letters. What is recalled has passed
the checks that options and the columns of a frame pass, or it is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import types as t

from pgonce.offsets_store.errors import UNCHANGED, PgonceError, RecoveryError

from ...encoding.encoded_types import EncodedColumn, encoded_columns, type_from_json
from ...options.destination import (
    DELETED_COLUMN,
    Changes,
    Decoding,
    Destination,
    Existing,
    decoding_of,
    destination,
)
from ...options.option import Way
from ...options.reading import read
from ..recorded_destination import ADDS_COLUMNS, ALL_DELETE, CREATES, FRAMED, VERSION

RECORDED = frozenset({"mode", "keys", "order_by", "schema_evolution", "delete_when", "change_feed", "deletes"}).union(
    Existing.__dataclass_fields__
)
"""The options that say how a row is written to a table that is there."""
RECORDED_OF_DECODING = frozenset(
    {"decode", "decode_key", "columns", "kafka_columns", "null_values", "schema_registry_url"}
)
"""The options that say how a record becomes a row."""
UNTOLD = "a registry"
"""In place of the address of a schema registry, which no letter has."""


def recalled(value: Any) -> tuple[Destination, tuple[EncodedColumn, ...]]:
    """
    The destination and the columns that :func:`recorded` has written down.

    :raises RecoveryError: REPLAY_IMPOSSIBLE, if nothing was recorded, or another pgonce recorded it, or it was changed
        since.
    """
    if not isinstance(value, Mapping) or not value:
        raise _impossible("there is no record of how to write the row")
    if value.get("version") != VERSION:
        raise _impossible(
            f"the record of how to write the row has version {value.get('version')!r}, and this pgonce can read "
            f"version {VERSION}"
        )
    try:
        struct = t.StructType([_recalled_field(column) for column in _list(value["columns"])])
        return _recalled_destination(value), encoded_columns(struct)
    except PgonceError as error:
        raise _makes_no_sense(error.what.removesuffix(".")) from error
    except (KeyError, TypeError, ValueError) as error:
        raise _makes_no_sense(repr(error)) from error


def recalled_to_look(value: Any) -> tuple[Destination, tuple[EncodedColumn, ...]]:
    """
    Like :func:`recalled`, for what :func:`written_as` has recorded, and for a look that writes nothing.

    :raises RecoveryError: REPLAY_IMPOSSIBLE.
    """
    found, columns = recalled(value)
    evolution = "addColumns" if value.get(ADDS_COLUMNS) is True else found.schema_evolution
    return replace(found, create_table=value.get(CREATES) is True, schema_evolution=evolution), columns


def recorded_oid(value: Mapping[str, Any]) -> int | None:
    """
    The oid of the table that :func:`recorded` has written down; None if it has not, as older versions did not.

    :raises RecoveryError: REPLAY_IMPOSSIBLE, if it was changed since.
    """
    oid = value.get("oid")
    if oid is not None and type(oid) is not int:
        raise _impossible(f"the recorded oid of its table is not valid ({oid!r})")
    return oid


def _recalled_field(value: Any) -> t.StructField:
    if not isinstance(value, Mapping) or set(value) != {"name", "type"}:
        raise TypeError(value)
    return t.StructField(_text(value["name"]), type_from_json(value["type"]))


def _recalled_destination(value: Mapping[str, Any]) -> Destination:
    aside = frozenset(map(_text, _list(value["aside"])))
    if not isinstance(value["options"], Mapping):
        raise TypeError(value["options"])
    options = dict(value["options"])
    all_delete = options.pop(ALL_DELETE, False)
    if not RECORDED.issuperset(options) or all_delete not in (False, True):
        raise ValueError(sorted(options))
    if options.get("schema_evolution", "ignoreExtra") != "ignoreExtra":
        # To add columns would alter the table with the rights of the role that replays.
        raise ValueError(options["schema_evolution"])
    if all_delete:
        options["delete_when"] = DELETED_COLUMN
    # The way that options of a query take: what they refuse is refused here.
    found = destination(_text(value["table"]), **options)
    decoding = _recalled_decoding(value["decoding"]) if "decoding" in value else None
    changes = Changes(all_delete=True) if all_delete else found.changes
    return replace(found, changes=changes, aside=aside, decoding=decoding)


def _recalled_decoding(value: Any) -> Decoding | None:
    given = dict(value)
    given["schema_registry_url"] = UNTOLD if given.pop(FRAMED) is True else None
    if not RECORDED_OF_DECODING.issuperset(given):
        raise ValueError(sorted(given))
    return decoding_of(read(given, Way.WRITER))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(value)
    return value


def _makes_no_sense(why: str) -> RecoveryError:
    return _impossible(f"the record of how to write the row is not valid ({why})")


def _impossible(why: str) -> RecoveryError:
    return RecoveryError(
        "REPLAY_IMPOSSIBLE",
        f"It cannot be replayed: {why}.",
        UNCHANGED,
        "Write what is needed of the row into its table with SQL, and take the letter out with "
        "`pgonce dead-letters --discard`. If a newer pgonce has put the row aside, replay it with that one.",
    )
