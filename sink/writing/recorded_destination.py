"""
How rows were to be written to a table, as JSON: for the record of a batch, and with each row that was put aside.

Pure: runs in the commit. Invariant: a replay needs nothing else, and never creates or alters a table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from pgonce.offsets_store.ledger.published import WrittenAs

from ..encoding.encoded_types import EncodedColumn, type_as_json
from ..options.definitions import BY_KEY, OPTIONS
from ..options.destination import Changes, Decoding, Destination

VERSION = 2
"""A reader that does not know it cannot replay the letter."""
ALL_DELETE = "all_delete"
"""Not an option, but what ``tx.delete`` does: every row deletes."""
FRAMED = "framed"
"""Not an option either: whether a registry knows the schemas of the records."""
CREATES, ADDS_COLUMNS = "creates", "adds_columns"


def recorded(destination: Destination, columns: Sequence[EncodedColumn], oid: int | None = None) -> dict[str, Any]:
    """
    What a replay needs to know, as JSON.

    ``destination.table`` must have its schema, and the quotes that SQL needs: a replay may find another search_path.
    How many rows may be put aside is left out, because a replay puts none aside; so is what would create or alter the
    table, because the batch has done that. By its ``oid`` the table is known even if its name means another one later.

    :raises ValueError: for a column of a type that cannot be encoded.
    """
    return {
        "version": VERSION,
        "table": destination.table,
        "oid": oid,
        "options": _options(destination),
        "aside": sorted(destination.aside),
        **({"decoding": _decoding(destination.decoding)} if destination.decoding else {}),
        "columns": [{"name": column.name, "type": _type(column)} for column in columns],
    }


def _type(column: EncodedColumn) -> Any:
    # Texts that are JSON already are JSON in the row's, as a variant is.
    return "variant" if column.decoded_for == "jsonb" else type_as_json(column.data_type)


@lru_cache(maxsize=256)
def written_as(destination: Destination, columns: tuple[EncodedColumn, ...], identifier: str, oid: int) -> WrittenAs:
    """
    The same for the record of a batch, so that the table can be checked before the next one.

    What creates or alters the table is part of it: a column that the next batch adds is not missing.

    :param identifier: the table with its schema, and the quotes that SQL needs.
    """
    how = recorded(replace(destination, table=identifier, dead_letters=None), columns, oid)
    how |= {CREATES: destination.create_table, ADDS_COLUMNS: destination.schema_evolution == "addColumns"}
    return WrittenAs(how, hashlib.sha256(json.dumps(how).encode()).hexdigest())


def _decoding(of: Decoding) -> dict[str, Any]:
    """The options that a user would give for it."""
    return {
        "decode": of.values,
        "decode_key": of.key,
        "columns": dict(of.paths),
        "kafka_columns": dict(of.kafka),
        "null_values": of.null_values,
        # Its address may have a login.
        FRAMED: bool(of.registry_url),
    }


def _options(of: Destination) -> dict[str, Any]:
    """The options that a user would give for such a destination; those that keep their defaults are left out."""
    changes = of.changes or Changes()
    soft = f":{changes.soft_column}" if changes.soft_column else ""
    given: dict[str, Any] = {
        # Without createTable, modes that do not write by key refuse keys: they have become the table's primary key.
        "keys": of.keys if of.mode in BY_KEY else (),
        "order_by": of.order_by,
        "schema_evolution": of.schema_evolution if of.schema_evolution == "ignoreExtra" else "strict",
        "delete_when": changes.deleted if of.decoding and of.changes and not changes.feed else changes.delete_when,
        "change_feed": changes.feed,
        "deletes": changes.deletes + soft,
        **vars(of.existing),
    }
    given = {name: value for name, value in given.items() if value != OPTIONS[name].default}
    all_delete = {ALL_DELETE: True} if changes.all_delete else {}
    # As JSON gives it back.
    return {"mode": of.mode} | {n: list(v) if isinstance(v, tuple) else v for n, v in given.items()} | all_delete
