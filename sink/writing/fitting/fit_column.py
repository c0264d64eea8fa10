"""
May the encoded form of a Spark column go into a given column of the table, whatever its type is?

Pure; runs in the driver. Invariant: that of :mod:`pgonce.sink.writing.fitting.fit`. It decides for the types that come
with Postgres, and for what has a text form; the types of extensions and composite types are looked at before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ...encoding.encoded_types import EncodedColumn
from .composite_fit import fit_composite
from .extension_fit import fit_extension
from .fit import Fitting, fit, refused, rounds_its_text
from .user_types import Attribute, UserType


class Target(Protocol):
    """A column of a table, or an attribute of a composite type: its types as the catalogue has them."""

    @property
    def base_type(self) -> str:
        """Without a modifier; a domain's base type."""

    @property
    def full_type(self) -> str:
        """With its modifier."""

    @property
    def user_type(self) -> UserType | None:
        """What is known about a type that did not come with Postgres."""


def fit_column(encoded: EncodedColumn, target: Target) -> Fitting:
    """Say whether an encoded column may be copied straight into the target, needs a cast, or is refused."""
    found = target.user_type
    if found is None:
        return fit(encoded, target.base_type, target.full_type)
    kind = (found.element or found).kind
    if kind == "c" and encoded.postgres_type != "text":
        return fit_composite(encoded, target.full_type, found, fit_column)
    for part in _parts(found):
        if kind == "c" and rounds_its_text(part.base_type, part.full_type):
            why = f"Postgres would round or cut the text of {part.name} ({part.full_type}): make a struct in Spark"
            return refused(encoded, target.full_type, why)
    # An explicit cast to an array of domains would cut texts.
    takes_texts = found.element is not None and kind not in "cd"
    return fit_extension(encoded, target.full_type, found) or fit(
        encoded, target.base_type, target.full_type, takes_texts=takes_texts
    )


def _parts(found: UserType) -> Iterator[Attribute]:
    """The attributes of a composite type, and of those within it."""
    for attribute in found.attributes:
        yield attribute
        if (inner := attribute.user_type) is not None:
            yield from _parts(inner.element or inner)
