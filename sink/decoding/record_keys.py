"""
Read the keys of records: for the columns in ``keys`` that a value does not have, and for what Debezium says of updates.

Runs in tasks, and on the driver for foreachBatch. Invariant: what stands in a value counts; of a key, only what is
missing there is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import msgspec
import pyarrow as pa

from ..encoding import compute as pc
from ..options.definitions import DecodeFormat
from ..options.destination import REGISTERED, Decoding
from .fields import DecodedColumn, read_as
from .json_records import MALFORMED, json_records
from .records_with_schemas import RecordsWithSchemas, json_of_each
from .values import Refusal

HEADERS = "headers"


def headers_of(batch: pa.RecordBatch) -> Sequence[Any]:
    """The headers of each record, None where there are none."""
    return batch.column(HEADERS).to_pylist() if HEADERS in batch.schema.names else [None] * len(batch)


@dataclass(frozen=True)
class RecordKeys:
    """
    Reads keys for these columns, which are called there as the last part of their paths.

    :param have_schemas: whether keys that are JSON carry their schemas.
    """

    decoding: Decoding
    columns: tuple[DecodedColumn, ...]
    have_schemas: bool

    @cached_property
    def _named(self) -> tuple[DecodedColumn, ...]:
        return tuple(replace(column, path=column.path[-1:], required=False) for column in self.columns)

    def values(self, batch: pa.RecordBatch) -> list[Any]:
        """What each key says: a dict, JSON, or why it cannot be read; None if there is no key."""
        keys, form = batch.column("key").to_pylist(), self.decoding.key
        if not self.columns:
            return [None] * len(keys)
        if form == "text":
            return [None if key is None else _of_text(key, self._named[0]) for key in keys]
        if form == "json" and not self.have_schemas:
            return [None if key is None else msgspec.Raw(key) for key in keys]
        url = self.decoding.registry_url if form in REGISTERED else ""
        reader = RecordsWithSchemas(url, cast("DecodeFormat", form), self._named, refuses=frozenset())
        found = reader.read(keys, headers_of(batch), "key")
        if len(self._named) > 1:
            return found
        (name,) = self._named[0].path
        return [key if key is None or isinstance(key, (dict, Refusal)) else {name: key} for key in found]

    def unfit(self, texts: list[bytes | None]) -> dict[int, Refusal]:
        """Which of these objects, whose fields are called as the columns, do not fit them."""
        columns = tuple(replace(column, path=(column.name,)) for column in self._named)
        return json_records(columns, refuses=frozenset()).decode(texts).refused

    def fill(self, batch: pa.RecordBatch, by_name: dict[str, Any], refused: dict[int, Refusal]) -> None:
        """Take the values that these columns lack from the records' keys."""
        lacking = sorted(
            {
                row
                for column in self.columns
                if by_name[column.name].null_count
                for row, is_null in enumerate(by_name[column.name].is_null().to_pylist())
                if is_null and row not in refused
            }
        )
        if not lacking:
            return
        places = pa.array(lacking, pa.int64())
        texts, unread = json_of_each(self.values(batch.take(places)))
        decoded = json_records(self._named, refuses=frozenset()).decode(texts)
        why = {row: Refusal(of.column, f"Of its key: {of.message}") for row, of in decoded.refused.items()}
        refused |= {lacking[row]: of for row, of in (unread | why).items()}
        is_lacking = pa.array([row in set(lacking) for row in range(len(batch))])
        for column, filled in zip(self.columns, decoded.arrays, strict=True):
            array = by_name[column.name]
            # Of a record whose value has some of the keys, these count.
            chosen = pc.coalesce(array.take(places), filled)
            for row, is_null in zip(lacking, chosen.is_null().to_pylist(), strict=True):
                if is_null:
                    none = Refusal(column.name, f"Neither its value nor its key has a value for {column.name}.")
                    refused.setdefault(row, none)
            by_name[column.name] = pc.replace_with_mask(array, is_lacking, chosen)


def _of_text(key: bytes, column: DecodedColumn) -> dict[str, Any] | Refusal:
    """A key that is one value: bytes and texts as they are, others as JSON has them."""
    kind = read_as(column.data_type, column.form)
    try:
        if kind is bytes:
            return {column.path[0]: key}
        return {column.path[0]: key.decode() if kind is str else msgspec.json.decode(key, type=msgspec.Raw)}
    except MALFORMED as error:
        return Refusal(column.name, f"Its key does not fit: {error}.")
