"""
How a row that was put aside was to be written, as JSON and back.

Pure: runs in the commit that puts rows aside, and in their replay. Invariant: nothing in a letter is trusted, because
roles with fewer permissions than the one that replays can write letters. What is recalled has passed the checks that
options and the columns of a frame pass, or it is an error. A replay never creates or alters a table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from pyspark.sql import types as t

from pgonce.offsets_store.errors import UNCHANGED, PgonceError, RecoveryError
from pgonce.offsets_store.ledger.published import WrittenAs

from ...encoding.encoded_types import EncodedColumn, encoded_columns, type_as_json, type_from_json
from ...options.definitions import BY_KEY, OPTIONS
from ...options.destination import DELETED_COLUMN, Changes, Destination, Existing, destination

VERSION = 2
"""A reader that does not know it cannot replay the letter."""
_ALL_DELETE = "all_delete"
"""Not an option, but what ``tx.delete`` does: every row deletes."""
_CREATES, _ADDS_COLUMNS = "creates", "adds_columns"
RECORDED = frozenset({"mode", "keys", "order_by", "schema_evolution", "delete_when", "change_feed", "deletes"}).union(
    Existing.__dataclass_fields__
)
"""The options that say how a row is written to a table that is there."""


def recorded(destination: Destination, columns: Sequence[EncodedColumn], oid: int | None = None) -> dict[str, Any]:
    """
    What a replay needs to know, as JSON.

    ``destination.table`` must have its schema, and the quotes that SQL needs: a replay may find another search_path.
    Where dead letters go is left out, because a replay puts none aside; so is what would create or alter the table,
    because the batch has done that. By its ``oid`` the table is known even if its name means another one later on.

    :raises ValueError: for a column without Spark's type, or with one that cannot be encoded.
    """
    return {
        "version": VERSION,
        "table": destination.table,
        "oid": oid,
        "options": _options(destination),
        "aside": sorted(destination.aside),
        "columns": [{"name": column.name, "type": type_as_json(_spark_type(column))} for column in columns],
    }


@lru_cache(maxsize=256)
def written_as(destination: Destination, columns: tuple[EncodedColumn, ...], identifier: str, oid: int) -> WrittenAs:
    """
    The same for the record of a batch, so that the table can be checked before the next one.

    What creates or alters the table is part of it: a column that the next batch adds is not missing.

    :param identifier: the table with its schema, and the quotes that SQL needs.
    """
    how = recorded(replace(destination, table=identifier, dead_letters=None), columns, oid)
    how |= {_CREATES: destination.create_table, _ADDS_COLUMNS: destination.schema_evolution == "addColumns"}
    return WrittenAs(how, hashlib.sha256(json.dumps(how).encode()).hexdigest())


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
    evolution = "addColumns" if value.get(_ADDS_COLUMNS) is True else found.schema_evolution
    return replace(found, create_table=value.get(_CREATES) is True, schema_evolution=evolution), columns


def recorded_oid(value: Mapping[str, Any]) -> int | None:
    """
    The oid of the table that :func:`recorded` has written down; None if it has not, as older versions did not.

    :raises RecoveryError: REPLAY_IMPOSSIBLE, if it was changed since.
    """
    oid = value.get("oid")
    if oid is not None and type(oid) is not int:
        raise _impossible(f"the recorded oid of its table is not valid ({oid!r})")
    return oid


def _spark_type(column: EncodedColumn) -> t.DataType:
    if column.data_type is None:
        raise ValueError(column.name)
    return column.data_type


def _options(of: Destination) -> dict[str, Any]:
    """The options that a user would give for such a destination; those that keep their defaults are left out."""
    changes = of.changes or Changes()
    soft = f":{changes.soft_column}" if changes.soft_column else ""
    given: dict[str, Any] = {
        # Without createTable, modes that do not write by key refuse keys: they have become the table's primary key.
        "keys": of.keys if of.mode in BY_KEY else (),
        "order_by": of.order_by,
        "schema_evolution": of.schema_evolution if of.schema_evolution == "ignoreExtra" else "strict",
        "delete_when": changes.delete_when,
        "change_feed": changes.feed,
        "deletes": changes.deletes + soft,
        **vars(of.existing),
    }
    given = {name: value for name, value in given.items() if value != OPTIONS[name].default}
    all_delete = {_ALL_DELETE: True} if changes.all_delete else {}
    # As JSON gives it back.
    return {"mode": of.mode} | {n: list(v) if isinstance(v, tuple) else v for n, v in given.items()} | all_delete


def _recalled_field(value: Any) -> t.StructField:
    if not isinstance(value, Mapping) or set(value) != {"name", "type"}:
        raise TypeError(value)
    return t.StructField(_text(value["name"]), type_from_json(value["type"]))


def _recalled_destination(value: Mapping[str, Any]) -> Destination:
    aside = frozenset(map(_text, _list(value["aside"])))
    if not isinstance(value["options"], Mapping):
        raise TypeError(value["options"])
    options = dict(value["options"])
    all_delete = options.pop(_ALL_DELETE, False)
    if not RECORDED.issuperset(options) or all_delete not in (False, True):
        raise ValueError(sorted(options))
    if options.get("schema_evolution", "ignoreExtra") != "ignoreExtra":
        # To add columns would alter the table with the rights of the role that replays.
        raise ValueError(options["schema_evolution"])
    if all_delete:
        options["delete_when"] = DELETED_COLUMN
    # The way that options of a query take: what they refuse is refused here.
    found = destination(_text(value["table"]), **options)
    return replace(found, changes=Changes(all_delete=True) if all_delete else found.changes, aside=aside)


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
