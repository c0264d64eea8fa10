"""
Resolve the user's text to a table.

Runs in the commit. Invariant: names are resolved by Postgres's own rules and the user's search_path, again for every
batch, because people alter tables under a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import TargetError, bad_target
from pgonce.offsets_store.postgres import search_path
from pgonce.offsets_store.postgres.one_trip import Statement, ask
from pgonce.offsets_store.postgres.text import LONGEST_NAME, qualified_name

TEMPORARY = "pg_temp"
"""An alias: the session's own schema for temporary tables has a number, and is made with the first of them."""


# What to_regclass and parse_ident raise for a text that is not a name.
NOT_A_NAME = (
    psycopg.errors.InvalidName,
    psycopg.errors.InvalidParameterValue,
    psycopg.errors.SyntaxError,
    psycopg.errors.FeatureNotSupported,
)


class QualifiedName:
    """What has a schema and a name in it, and a ``relkind``."""

    schema: str
    name: str
    kind: str | None

    @property
    def identifier(self) -> sql.Identifier:
        """Schema and name, quoted."""
        return sql.Identifier(self.schema, self.name)

    @property
    def only(self) -> sql.Composable:
        """The table in a statement: with its partitions, but without tables that inherit from it: they are others'."""
        return sql.SQL("ONLY {}" if self.kind == "r" else "{}").format(self.identifier)

    @property
    def qualified_name(self) -> str:
        """Schema and name as SQL and the option ``table`` take them; the default sink name."""
        return qualified_name(self.schema, self.name)


@dataclass(frozen=True)
class ResolvedName(QualifiedName):
    """A table's schema and name, and its ``relkind`` and oid; None if there is no such table."""

    schema: str
    name: str
    kind: str | None
    oid: int | None = None


def resolve_table(connection: psycopg.Connection, table: str) -> ResolvedName:
    """
    The table behind what the user wrote, by Postgres's own rules for quotes, case and search path.

    A table that does not exist yet gets the schema in which CREATE TABLE would put it.
    """
    return ask_for_tables(connection, [table])()[0]


def ask_for_tables(connection: psycopg.Connection, tables: Sequence[str]) -> Callable[[], list[ResolvedName]]:
    """
    Ask what :func:`resolve_table` says of each; the function that is returned reads the answer.

    In a round trip with other statements, a text that is not a name ends the trip with an error of ``NOT_A_NAME``.
    """
    try:
        asked = ask(connection, _RESOLVE_ALL, {"given": list(tables)})
    except NOT_A_NAME as error:
        raise not_a_name(tables, error) from error
    return lambda: [resolved(row, table) for row, table in zip(asked.rows(), tables, strict=True)]


def resolve_statement(table: str) -> sql.Composed:
    """The question whose answer :func:`resolved` reads; a text that is not a name raises an error of ``NOT_A_NAME``."""
    return sql.SQL(_RESOLVE).format(given=sql.SQL("(VALUES ({}, 1))").format(sql.Literal(table)))


def resolved(found: Sequence[Any], table: str) -> ResolvedName:
    """
    What Postgres's answer says about the name.

    :raises TargetError: BAD_TABLE_NAME, TARGET_MISSING.
    :raises psycopg.errors.SerializationFailure: if the transaction's snapshot is older than the table.
    """
    parts, current_schema, schema, name, oid, kind, exists, _ = found
    if exists and oid is None:
        raise psycopg.errors.SerializationFailure(f"{table} was created after this transaction had taken its snapshot")
    if oid is None and len(parts) in (1, 2):
        # An absent table cannot be looked up, so its name is split the way to_regclass would split it.
        schema, name = (current_schema, *parts)[-2:]
    if schema is None and name is not None:
        raise bad_target(
            "TARGET_MISSING",
            f"table={table!r} names no schema, and no schema on the role's search_path exists.",
            "Write schema.table, or set search_path for the role or in url: options=-csearch_path=app.",
        )
    if schema is None or name is None:
        raise not_a_name([table])
    if any(len(part.encode()) > LONGEST_NAME for part in parts[-2:]):
        raise bad_target(
            "BAD_TABLE_NAME",
            f"table={table!r} is longer than the names that Postgres keeps. Postgres would cut it off.",
            f"Use names of at most {LONGEST_NAME} bytes, which Postgres keeps as they are.",
        )
    if parts[:-1] == [TEMPORARY]:
        parts = parts[-1:]
    # Not the name in pg_class: to_regclass knows what the table is called now, and the snapshot what it was called.
    schema, name = (schema, *parts)[-2:]
    return ResolvedName(schema, name, kind, oid)


def not_a_name(tables: Sequence[str], error: psycopg.Error | None = None) -> TargetError:
    """The error for texts of which one names no table; ``error`` is what Postgres says."""
    which = f"table={tables[0]!r}" if len(tables) == 1 else f"One of {', '.join(map(repr, tables))}"
    said = f" ({error.diag.message_primary})" if error else ""
    return bad_target(
        "BAD_TABLE_NAME",
        f"{which} is not a table's name{said}.",
        "Write table or schema.table, and put names with capitals or odd characters in double quotes: "
        "'app.\"Orders\"'.",
    )


# Everything is qualified, because the user's search_path is in force here and decides. The oid that is found is kept
# for the next statement of the same text, where there is only one table.
_RESOLVE = """
SELECT pg_catalog.parse_ident(t.given), pg_catalog.current_schema(), n.nspname, c.relname, c.oid,
       c.relkind::pg_catalog.text, pg_catalog.to_regclass(t.given) IS NOT NULL,
       pg_catalog.set_config('pgonce.target', coalesce(c.oid, 0)::pg_catalog.text, true)
FROM {given} AS t(given, place)
LEFT JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(t.given)
LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
ORDER BY t.place
"""

_RESOLVE_ALL = Statement(_RESOLVE.format(given="pg_catalog.unnest($1::pg_catalog.text[]) WITH ORDINALITY"), "given")

_NEAR = """
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE lower(c.relname) = lower({name}) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
AND left(n.nspname, 3) <> 'pg_' AND n.nspname NOT IN ('information_schema', 'pgonce')
ORDER BY n.nspname <> {schema}, n.nspname, c.relname LIMIT 3
"""


def missing_table(connection: psycopg.Connection, found: ResolvedName) -> TargetError:
    """The error for a table that is not there, with the names that differ only in case or schema."""
    near = sql.SQL(_NEAR).format(schema=sql.Literal(found.schema), name=sql.Literal(found.name))
    names = [name for (name,) in search_path.execute_in_tx(connection, near).fetchall()]
    if names:
        remedy = f"There is {', '.join(names)}: if you mean it, write table={names[0]}"
        remedy += ", with the double quotes." if '"' in names[0] else "."
        remedy += " Without double quotes Postgres reads a name in lower case; one without a schema is looked up along"
    else:
        remedy = "Create it, or set createTable=true. An unqualified name is looked up along"
    what = f"There is no table {found.qualified_name}."
    gone = (
        "If earlier batches were written to it, their rows are gone with it, and Spark does not read them again: "
        "rename the table back, restore it, or load all rows again (page `recovering` of the documentation, Loading "
        "a table again)."
    )
    return bad_target("TARGET_MISSING", what, f"{remedy} the role's search_path. {gone}")


def refuse_missing(connection: psycopg.Connection, found: ResolvedName, *, creates: bool) -> None:
    """:raises TargetError: TARGET_MISSING, unless the table is to be created, in a schema that exists."""
    exists = "SELECT pg_catalog.to_regnamespace(pg_catalog.quote_ident(%s)) IS NOT NULL"
    if found.schema != TEMPORARY and connection.execute(exists, [found.schema]).fetchone() != (True,):
        raise bad_target(
            "TARGET_MISSING",
            f"There is no schema {found.schema}.",
            f"Create it (createTable creates the table only), or correct the name {found.schema} in table.",
        )
    if not creates:
        raise missing_table(connection, found)
