"""
Write a table's schema and name as one text, which no other table of the database has.

Pure: runs wherever the ledger or a lock knows a table by its name. Invariant: Python and SQL make the same text, and
Postgres's ``to_regclass`` finds the table by it.

It is what ``quote_ident`` makes of both parts, but for key words, which have no quotes here: which words are key words
differs between versions of Postgres, and the text must stay the same when a database is upgraded. Behind a dot, and in
``to_regclass``, a key word needs no quotes.
"""

from __future__ import annotations

import re

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
