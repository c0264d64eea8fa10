"""
A schema with evil objects, as another role could put it on a search_path.

Runs in: pytest. Invariant: every name in the schema ``evil`` is one that a statement of ours could mean by accident,
and a statement that uses it fails, with a word in the server's log that outlives the transaction.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import psycopg
from support.committed_batch import quoted

import pgonce

_RELATIONS = (
    *("writers", "batches", "runs", "replays", "progress", "staged_tables", "schema_version"),
    *("current_offsets", "totals", "pgonce_rows_0"),
    *("pg_class", "pg_namespace", "pg_attribute", "pg_type", "pg_rewrite", "pg_stat_activity", "pg_settings"),
)
# A driver's parameters come as varchar, or without a type: operators for these fit better than pg_catalog's for text.
_TYPES = ("text", "varchar", "bpchar", "name", '"char"', "int4", "int8", "oid", "uuid", "jsonb", "bool", "timestamptz")
_OPERATORS = ("=", "<>", "<", "<=", ">", ">=", "-", "~", "~~", "||", "->")
_SHADOWED_TYPES = (
    *("text", "varchar", "int4", "int8", "uuid", "jsonb", "json", "bool", "timestamptz", "name", "oid", '"char"'),
)
# What SQLAlchemy and psycopg ask for by themselves.
_OF_DRIVERS = {"current_schema", "version", "to_regtype"}

_FUNCTIONS = """
SELECT p.proname, coalesce(string_agg(format_type(a.type, NULL), ', ' ORDER BY a.n), '')
FROM pg_proc AS p LEFT JOIN unnest(p.proargtypes) WITH ORDINALITY AS a (type, n) ON true
WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = ANY (%s)
GROUP BY p.oid, p.proname
HAVING NOT bool_or(coalesce((SELECT typtype = 'p' FROM pg_type WHERE oid = a.type), false))
"""


def make_evil(admin: psycopg.Connection) -> set[str]:
    """Make the schema ``evil``, open to everybody as ``public`` once was; the functions that it has."""
    words = set(_words_of(Path(pgonce.__path__[0])))
    functions = admin.execute(_FUNCTIONS, [sorted(words | _OF_DRIVERS)]).fetchall()
    signatures = {
        (name, variant)
        for name, arguments in functions
        for variant in (arguments, re.sub(r"\btext\b", "character varying", arguments))
        # An aggregate, below.
        if (name, variant) != ("count", "")
    }
    statements = [
        "CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO PUBLIC",
        "CREATE FUNCTION evil.caught(what text) RETURNS boolean LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE LOG 'evil was called: %', what; RAISE EXCEPTION 'evil was called: %', what; END $$",
        *(f"CREATE VIEW evil.{name} AS SELECT evil.caught('{name}') AS id" for name in _RELATIONS),
        *(_function(f"{quoted(name)}({arguments})", name) for name, arguments in sorted(signatures)),
        _function("add(int8)", "count", "int8"),
        "CREATE AGGREGATE evil.count(*) (SFUNC = evil.add, STYPE = int8, INITCOND = '0')",
        *map(_operators, itertools.product(_TYPES, repeat=2)),
        # Last, for what is above names these types.
        *(f"CREATE DOMAIN evil.{name} AS pg_catalog.{name} CHECK (evil.caught('{name}'))" for name in _SHADOWED_TYPES),
    ]
    admin.execute(";\n".join(statements).encode(), prepare=False)
    return {name for name, _ in signatures}


def _words_of(folder: Path) -> set[str]:
    return {word for path in folder.rglob("*.py") for word in re.findall(r"\w+", path.read_text())}


def _function(signature: str, name: str, result: str = "text") -> str:
    return (
        f"CREATE FUNCTION evil.{signature} RETURNS {result} LANGUAGE plpgsql AS "
        f"$$ BEGIN PERFORM evil.caught('{name}'); RETURN NULL; END $$"
    )


def _operators(types: tuple[str, str]) -> str:
    left, right = types
    operators = [
        f"CREATE OPERATOR evil.{operator} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = evil.compare)"
        for operator in _OPERATORS
    ]
    return ";\n".join(
        [_function(f"compare({left}, {right})", f"{left} op {right}".replace('"', ""), "bool"), *operators]
    )
