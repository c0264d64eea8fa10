"""
Can Postgres hold this text?

Pure. Invariant: the error for a text that it cannot hold names the option that has the text.
"""

from __future__ import annotations

from ..errors import bad_option


def is_storable(text: str) -> bool:
    """Whether Postgres can hold a text: it cannot hold a NUL, nor half a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def refuse_unstorable(**texts: str | None) -> None:
    """
    Refuse options whose texts Postgres cannot hold.

    :raises ConfigurationError: naming the first of them.
    """
    for name, text in texts.items():
        if text is not None and not is_storable(text):
            raise bad_option(
                "BAD_OPTION", f"{name}={text!r} contains a NUL or half a surrogate pair.", "Give a text without these."
            )
