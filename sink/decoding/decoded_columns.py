"""
A column that is decoded, and the field of a record that it gets.

Pure: made where a batch is planned, used in tasks. Invariant: what a field is read as does not depend on the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

import pyarrow as pa
from pyspark.sql import types as t

from ..encoding.arrow_forms import arrow_form
from ..encoding.encoded_types import DECODED_FOR


class Form(Enum):
    """How a field's value is read."""

    VALUE = auto()
    """As a value of the column's type in Spark."""
    DIGITS = auto()
    """As a number with all its digits, which travels as text."""
    JSON = auto()
    """As the JSON that stands there, which travels as text."""


@dataclass(frozen=True)
class DecodedColumn:
    """
    A column of the table, and the field that it gets.

    :param path: the names that lead to the field, from the outermost object.
    :param data_type: as what the value travels; its ``form`` says how it is read.
    :param required: whether a record must have a value for it.
    :param is_key: whether it is among the keys, which the record's key may have.
    :param decoded_for: the column's type in Postgres; empty if the table has no such column.
    """

    name: str
    path: tuple[str, ...]
    data_type: t.DataType
    form: Form = Form.VALUE
    required: bool = False
    is_key: bool = False
    decoded_for: str = ""

    @property
    def is_nested(self) -> bool:
        """Whether its values are arrays or maps."""
        return isinstance(self.data_type, (t.ArrayType, t.MapType))

    @property
    def field(self) -> t.StructField:
        """The column of the rows that are decoded."""
        metadata = {DECODED_FOR: self.decoded_for} if self.decoded_for else {}
        return t.StructField(self.name, self.data_type, metadata=metadata)


@dataclass(frozen=True)
class KafkaColumn:
    """A column that gets something that Kafka knows of a record: ``what``, which may be ``headers.<name>``."""

    name: str
    what: str
    data_type: t.DataType


def arrow_type(data_type: t.DataType) -> pa.DataType:
    """The type of Arrow in which values travel."""
    if isinstance(data_type, t.MapType):
        return pa.map_(pa.string(), pa.string())
    return arrow_form(data_type, pa.string())
