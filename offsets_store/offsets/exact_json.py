"""
Decode JSON that can be held without losing anything, and compare such values.

Pure: runs anywhere. Invariant: a value that is decoded here comes back the same from jsonb, and through Python's json.
Anything else (a number that would be rounded, a repeated key, NaN, a NUL) is refused.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, NoReturn

# From here on, a float may stand for several whole numbers, while jsonb returns all digits.
_FLOATS_ARE_WHOLE = 2.0**53


def decode_exactly(text: str) -> Any:
    """
    Decode a JSON text.

    :raises ValueError: if it is not JSON, or cannot be held exactly.
    """
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    # jsonb holds neither a NUL nor half a surrogate pair (UnicodeEncodeError). Only escapes can bring them in.
    if "\\u" in text and b"\\u0000" in json.dumps(value, ensure_ascii=False).encode():
        raise ValueError("a NUL cannot be held")
    return value


def same_json(a: Any, b: Any) -> bool:
    """Whether both are one JSON value: the order of keys does not count, 1 and 1.0 are the same, 1 and true are not."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_json(value, b[key]) for key, value in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_json, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is repeated")
    return found


def _exact_float(text: str) -> float:
    value = float(text)
    if not abs(value) < _FLOATS_ARE_WHOLE or Decimal(repr(value)) != Decimal(text):
        raise ValueError("a number would be rounded")
    return value


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_float=_exact_float, parse_constant=_no_constant)
