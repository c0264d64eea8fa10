"""
Tell what stands in a row for a value that the source could not read.

Pure; its SQL runs in the commit, on rows that were gathered. Invariant: no placeholder overwrites a stored value,
because a column is refused if it may get one of Debezium's ``UnchangedToastedPlaceholder`` in a form that is not known.
Known are the text itself, its bytes, and, for a column that is an array, an array of the text, of its bytes, of a UUID
that is made from them, or of the bytes as numbers. An hstore is a map, or JSON, with the text as key and as value.
Other values than texts, bytes and arrays are too short for Postgres to store them apart.
"""

from __future__ import annotations

import hashlib
import json
import uuid

from psycopg import sql

from pgonce.offsets_store.errors import TargetError, bad_target

from ...encoding.encoded_types import EncodedColumn
from ..table.catalogue import TargetTable

VALUE_NOT_READ = "VALUE_NOT_READ"
UNREAD = "not_read"
"""The count of rows that were written without a value; they also count as written."""


def is_unread(column: EncodedColumn, text: str) -> sql.Composable | None:
    """
    Whether a gathered row has a placeholder in ``column``, a condition that is never null; None if it can have none.

    :param text: that of the placeholder, as ``keepWhere`` gives it.
    """
    # Not ANY, for which an array of arrays is one array.
    equal = sql.SQL("{} OPERATOR(pg_catalog.=) {}::pg_catalog.{}")
    name, postgres_type = sql.Identifier(column.name), sql.SQL(column.postgres_type)
    parts = [equal.format(name, sql.Literal(form), postgres_type) for form in _forms(text, column.postgres_type)]
    return sql.SQL("(({}) IS TRUE)").format(sql.SQL(" OR ").join(parts)) if parts else None


def refuse_unknown_forms(table: TargetTable, column: EncodedColumn, target: str) -> None:
    """
    Refuse a column whose value may be a placeholder that looks like any other value.

    :param target: the table's column that gets the value.
    :raises TargetError: VALUE_NOT_READ.
    """
    found = next(c for c in table.columns if c.column_name == target)
    is_shape = found.base_type.rpartition(".")[2] in ("geometry", "geography")
    if is_shape or (column.postgres_type.endswith("[]") and column.postgres_type not in _ARRAYS):
        raise bad_target(
            "VALUE_NOT_READ",
            f"keepWhere is set, and in column {target!r} of {table.qualified_name}, which has the type "
            f"{found.full_type}, the text that stands for a value which the source could not read cannot be told from "
            "a value: it would overwrite the stored one.",
            "Let the source send every value (ALTER TABLE ... REPLICA IDENTITY FULL), and set no keepWhere. Or leave "
            f"{column.name!r} out of the frame.",
        )


_ARRAYS = frozenset({"text[]", "bytea[]", "int4[]", "int8[]"})


def _forms(text: str, postgres_type: str) -> list[object]:
    """The placeholders in a column that is encoded as this type; none if it cannot hold one."""
    as_bytes, as_map = text.encode(), json.dumps({text: text}, ensure_ascii=False, separators=(",", ":"))
    made = uuid.UUID(bytes=hashlib.md5(as_bytes, usedforsecurity=False).digest(), version=3)
    forms: dict[str, list[object]] = {
        "text": [text, as_map],
        "bytea": [as_bytes],
        "jsonb": [json.dumps(text), as_map],
        "text[]": [[text], [str(made)]],
        "bytea[]": [[as_bytes]],
        # An array without elements is a value, and no placeholder.
        "int4[]": [list(as_bytes)] if text else [],
        "int8[]": [list(as_bytes)] if text else [],
    }
    return forms.get(postgres_type, [])


def unread_error(table: TargetTable, name: str) -> TargetError:
    """The error for a change that lacks the value of the column of this name."""
    return bad_target(
        "VALUE_NOT_READ",
        f"A change of the batch lacks a value that the source could not read ({name}), and {table.qualified_name} has "
        "no row with it: the change that has the value has not arrived yet, or was put aside. If this change were "
        "written now, the value would be lost.",
        "Write the rows of the source into the table first. Or set deadLetters, so that such changes are put aside "
        "until their row is there. Or let the source send every value: run ALTER TABLE ... REPLICA IDENTITY FULL "
        "there.",
    )
