"""
Which wider type takes values that a column's type does not, without the table being rewritten?

Pure; runs in the commit. Invariant: a type is named here only if Postgres 14 to 18 all keep the table's file and its
indexes when the column gets it, and if it takes every value of the type that the column had.
"""

from __future__ import annotations

import re

from ...encoding.encoded_types import EncodedColumn
from ..fitting.fit import Fit, fit
from ..table.catalogue import TargetColumn

# An array of any of these is rewritten, and so is a char(n), and a numeric that gets more digits after the point.
_FRACTIONS_OF_SECONDS = (
    "time without time zone",
    "time with time zone",
    "timestamp without time zone",
    "timestamp with time zone",
    "interval",
)
_DIGITS_OF_INTEGERS = {"int2": 5, "int4": 10, "int8": 19}
_MOST_DIGITS = 1000


def wider_type(column: TargetColumn, encoded: EncodedColumn) -> str | None:
    """The type in which ``column`` would hold whatever ``encoded`` may bring; None if there is none, or it has it."""
    wider = _wider(column, encoded)
    if wider is None or wider == column.full_type:
        return None
    base = "text" if wider == "text" else column.base_type
    return None if fit(encoded, base, wider).fit is Fit.REFUSED else wider


def is_limited(column: TargetColumn) -> bool:
    """
    Whether there are values of the column's kind that are too large for it, so that Postgres refuses them.

    Of an array this is not asked, because it has no wider type.
    """
    return re.fullmatch(r"(character varying|numeric|bit varying)\([-\d, ]+\)", column.full_type) is not None


def _wider(column: TargetColumn, encoded: EncodedColumn) -> str | None:
    modifiers = re.search(r"\(([-\d, ]+)\)", column.full_type)
    numbers = [int(number) for number in modifiers[1].split(",")] if modifiers else []
    if column.base_type in _FRACTIONS_OF_SECONDS:
        return column.base_type
    if not numbers:
        return None
    if column.base_type == "character varying":
        length = re.fullmatch(r"(?:var)?char\((\d+)\)", encoded.ddl_type)
        if length is None:
            return "text"
        return f"character varying({length[1]})" if int(length[1]) > numbers[0] else None
    if column.base_type == "bit varying":
        return column.base_type
    if column.base_type == "numeric":
        precision, scale = numbers
        digits = _digits_before_the_point(encoded) + scale
        return f"numeric({digits},{scale})" if precision < digits <= _MOST_DIGITS else None
    return None


def _digits_before_the_point(encoded: EncodedColumn) -> int:
    declared = re.fullmatch(r"numeric\((\d+),(\d+)\)", encoded.ddl_type)
    return int(declared[1]) - int(declared[2]) if declared else _DIGITS_OF_INTEGERS.get(encoded.postgres_type, 0)
