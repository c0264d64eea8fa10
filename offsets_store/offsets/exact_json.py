"""
Which JSON can be held without losing anything, and when are two values of it the same?

Runs anywhere, without I/O. Invariant: what is decoded here comes back from jsonb, and through Python's json,
as the same value. Anything else (a number that rounds, a repeated key, NaN, a NUL) is refused, not rounded.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, NoReturn

# From here on a whole number may have no float of its own, and jsonb returns it with all its digits.
_FLOATS_ARE_WHOLE = 2.0**53


def decode_exactly(text: str) -> Any:
    """
    Decode a JSON text.

    :raises ValueError: it is not JSON, or not one that can be held exactly.
    """
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    # jsonb holds neither a NUL nor half a surrogate pair (UnicodeEncodeError); only escapes bring them in.
    if "\\u" in text and b"\\u0000" in json.dumps(value, ensure_ascii=False).encode():
        raise ValueError("a NUL cannot be held")
    return value


def same_json(a: Any, b: Any) -> bool:
    """Whether both are one JSON value: key order is nothing, 1 and 1.0 are one value, 1 and true are two."""
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
