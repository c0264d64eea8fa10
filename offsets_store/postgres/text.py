"""
Text that Postgres can store, and the qualified name of a table as one text.

Pure: runs where an option is read, and where the ledger or a lock knows a table by its name. Invariant: Python
and SQL make the same qualified name, no two tables of a database have the same one, and Postgres's ``to_regclass``
finds the table by it.

A qualified name is what ``quote_ident`` makes of both parts, except that key words have no quotes here. Which words are
key words differs between versions of Postgres, and the text must stay the same when a database is upgraded. Behind a
dot, and in ``to_regclass``, a key word needs no quotes.
"""

from __future__ import annotations

import re

from ..errors import bad_option

LONGEST_NAME = 63
"""In bytes: Postgres's NAMEDATALEN, less the byte that ends the text."""


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
                "BAD_OPTION",
                f"{name}={text!r} contains a NUL or half a surrogate pair.",
                "Give a string without these.",
            )


_PLAIN = "[a-z_][a-z0-9_]*"


def qualified_name(schema: str, name: str) -> str:
    """
    Schema and name, each in double quotes where it is not plain.

    >>> qualified_name("public", "events"), qualified_name("a.b", "Odd")
    ('public.events', '"a.b"."Odd"')
    """
    return f"{_quoted(schema)}.{_quoted(name)}"


def _quoted(part: str) -> str:
    return part if re.fullmatch(_PLAIN, part) else '"{}"'.format(part.replace('"', '""'))


def _quoted_in_sql(part: str) -> str:
    text = f'{part}::text COLLATE "C"'
    return f"""CASE WHEN {text} ~ '^{_PLAIN}$' THEN {text} ELSE '"' || replace({text}, '"', '""') || '"' END"""


QUALIFIED_NAME = f"({_quoted_in_sql('n.nspname')} || '.' || {_quoted_in_sql('c.relname')})"
"""The same in SQL, of ``pg_class AS c`` and ``pg_namespace AS n``; for a statement under our search_path."""
