"""
Say of which types the fields of a JSON Schema are.

Pure: runs where a batch is planned. Invariant: a field gets a type of its own only where the schema allows no other;
every other one is jsonb, which holds whatever a record has there.

https://json-schema.org/draft/2020-12/json-schema-core
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from pyspark.sql import types as t

from .schemas import JSON, NUMBER, TEXT, Kind, Schema, array_of, kind_of_column

_KINDS: dict[tuple[str, str], Kind] = {
    ("boolean", ""): Kind(t.BooleanType()),
    ("integer", ""): Kind(t.LongType()),
    ("number", ""): NUMBER,
    ("string", ""): TEXT,
    ("string", "date"): Kind(t.DateType()),
    ("string", "date-time"): Kind(t.TimestampType()),
    ("string", "base64"): Kind(t.BinaryType()),
}
"""By the name of the type, and what ``format`` or ``contentEncoding`` says of it."""
_NONE = frozenset[str]()


class JsonSchema(Schema):
    """
    A schema, with the ``references`` that it needs, by their names.

    :raises ValueError: if one of them is no JSON.
    """

    form = "json"

    def __init__(self, text: str, references: Sequence[tuple[str, str]] = ()) -> None:
        self._files = {name: json.loads(one) for name, one in (*references, ("", text))}
        # A part of a schema is its file, itself, and the references that led to it.
        self._root = ("", self._files[""], _NONE)

    def value(self, body: bytes) -> Any:
        """The record; its schema does not change what stands there."""
        return msgspec.Raw(body)

    def _branches(self, schema: Any) -> Iterator[tuple[Kind, Mapping[str, Any]]]:
        file, found, above = schema
        found = found if isinstance(found, dict) else {}
        parts = [(file, part, above) for word in ("allOf", "anyOf", "oneOf") for part in found.get(word, ())]
        if "$ref" in found:
            parts.append(self._referred(file, found["$ref"], above))
        for part in parts:
            yield from self._branches(part)
        names = found.get("type", () if parts and "properties" not in found else "object")
        inner = {name: (file, part, _NONE) for name, part in found.get("properties", {}).items()}
        for name in [names] if isinstance(names, str) else names:
            if name != "null":
                yield self._kind(name, (file, found, above)), inner if name == "object" else {}

    def _referred(self, file: str, reference: str, above: frozenset[str]) -> tuple[str, Any, frozenset[str]]:
        """What a reference leads to; nothing that has a type, if that is elsewhere or leads to itself."""
        name, _, pointer = reference.partition("#")
        name = name or file
        found = self._files.get(name) if f"{name}#{pointer}" not in above else None
        for part in pointer.split("/")[1:]:
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        return name, found, above | {f"{name}#{pointer}"}

    def _kind(self, name: str, schema: Any) -> Kind:
        file, found, above = schema
        if name == "array":
            return array_of(kind_of_column([kind for kind, _ in self._branches((file, found.get("items"), above))]))
        said = found.get("format") or found.get("contentEncoding") or ""
        return _KINDS.get((name, said)) or _KINDS.get((name, ""), JSON)
