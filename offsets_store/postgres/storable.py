"""
Can Postgres hold this text?

Pure. Invariant: what it cannot hold is refused by the name of the option that it came in.
"""

from __future__ import annotations

from pgonce.offsets_store.errors import bad_option


def is_storable(text: str) -> bool:
    """Whether Postgres can hold a text: NUL and halves of surrogate pairs it cannot."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def refuse_unstorable(**texts: str | None) -> None:
    """
    Refuse options that Postgres cannot hold as names or texts.

    :raises ConfigurationError: naming the first of them.
    """
    for name, text in texts.items():
        if text is not None and not is_storable(text):
            raise bad_option(
                "BAD_OPTION", f"{name}={text!r} has a NUL or half a surrogate pair in it.", "Give a text without."
            )
