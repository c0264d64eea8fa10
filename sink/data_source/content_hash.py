"""
A hash that is equal for two runs of a batch job with the same rows, in any order and any number of partitions.

Pure: rows are hashed in tasks, and the sums are combined in the commit worker. Invariant: the hash depends on the
columns, the values of each row, and how often each row is there, and on nothing else.

It is the sum of all rows' hashes, modulo 2 ** 256, because a sum does not depend on the order. (An exclusive or would
not see a row that is there twice.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from ..encoding.copy_encoder import body_rows
from ..encoding.encoded_types import EncodedColumn

_BYTES = 32
_MODULUS = 1 << 8 * _BYTES
# Another way to hash, or to encode, must have another name: its hashes are not comparable with these.
_VERSION = "1"


class RowSum:
    """The sum of the hashes of all rows of one task attempt, as they are encoded."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, body: bytes) -> None:
        """Add the rows of a body of a binary COPY."""
        view, total = memoryview(body), 0
        for start, end in body_rows(view):
            digest = hashlib.blake2b(view[start:end], digest_size=_BYTES).digest()
            total += int.from_bytes(digest, "big")
        self.value = (self.value + total) % _MODULUS


def content_hash(columns: Iterable[EncodedColumn], rows: int, sums: Iterable[int]) -> str:
    """The hash of all rows, from the sums of their tasks."""
    total = sum(sums) % _MODULUS
    of = hashlib.blake2b(digest_size=_BYTES)
    for column in columns:
        of.update(f"{column.name!r} {column.postgres_type}\n".encode())
    of.update(rows.to_bytes(8, "big") + total.to_bytes(_BYTES, "big"))
    return f"{_VERSION}:{of.hexdigest()}"
