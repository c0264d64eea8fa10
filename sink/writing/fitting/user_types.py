"""
What are the types of a table's columns that did not come with Postgres: of extensions, or made by the user?

Runs in the commit and in the first look, only for tables that have such columns. Invariant: a type is known by its
place in the catalogue and never by its name alone, because anybody may call a type ``vector``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from pgonce.offsets_store.postgres import search_path

FIRST_OF_USERS = 16_384
"""Postgres's FirstNormalObjectId: what came with it has smaller numbers."""

# From the given types to the elements of arrays, to what domains are made of, and to the attributes of composites.
_DESCRIBE = """
WITH RECURSIVE reached AS (
    SELECT oid FROM unnest(ARRAY[{oids}]::oid[]) AS given (oid)
    UNION
    SELECT part.oid FROM reached AS r JOIN pg_type AS y ON y.oid = r.oid CROSS JOIN LATERAL (
        SELECT y.typelem WHERE y.typcategory = 'A'
        UNION ALL SELECT y.typbasetype
        UNION ALL SELECT a.atttypid FROM pg_attribute AS a
            WHERE a.attrelid = y.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    ) AS part (oid)
    WHERE part.oid >= {first}
)
SELECT y.oid::bigint, y.typtype::text AS kind, n.nspname::text AS schema, y.typname::text AS name,
    (SELECT e.extname::text FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid
     WHERE d.classid = 'pg_type'::regclass AND d.objid = y.oid AND d.refclassid = 'pg_extension'::regclass
     AND d.deptype = 'e') AS extension,
    CASE WHEN y.typcategory = 'A' THEN y.typelem ELSE 0 END::bigint AS element,
    y.typbasetype::bigint AS base, format_type(y.typbasetype, NULL) AS base_type,
    format_type(y.typbasetype, y.typtypmod) AS full_type,
    (SELECT jsonb_agg(jsonb_build_object('name', a.attname::text, 'oid', a.atttypid::bigint, 'base_type',
         format_type(a.atttypid, NULL), 'full_type', format_type(a.atttypid, a.atttypmod)) ORDER BY a.attnum)
     FROM pg_attribute AS a WHERE a.attrelid = y.typrelid AND a.attnum > 0 AND NOT a.attisdropped) AS attributes
FROM pg_type AS y JOIN pg_namespace AS n ON n.oid = y.typnamespace
WHERE y.oid IN (SELECT r.oid FROM reached AS r)
"""


@dataclass(frozen=True)
class Attribute:
    """An attribute of a composite type; if its type is a domain, these are those of its base type."""

    name: str
    base_type: str
    full_type: str
    user_type: UserType | None


@dataclass(frozen=True)
class UserType:
    """
    A type that did not come with Postgres.

    :param kind: ``pg_type.typtype``: ``b`` base, ``c`` composite, ``d`` domain, ``e`` enum, ``r`` range,
        ``m`` multirange. A domain is met only as the element of an array.
    :param extension: the extension that it belongs to.
    :param element: for an array of such a type, that type.
    :param attributes: for a composite type.
    """

    kind: str
    schema: str
    name: str
    extension: str | None = None
    element: UserType | None = None
    attributes: tuple[Attribute, ...] = ()

    def beside(self, name: str) -> str:
        """The qualified name of something in the type's schema: an extension keeps its objects together."""
        return sql.Identifier(self.schema, name).as_string(None)

    @property
    def identifier(self) -> str:
        """Its qualified name."""
        return self.beside(self.name)

    def is_of(self, extension: str, *names: str) -> bool:
        """Whether the extension brings it along under one of these names."""
        return self.extension == extension and self.name in names


def read_user_types(connection: psycopg.Connection, oids: Sequence[int]) -> dict[int, UserType]:
    """The types of these numbers; those that came with Postgres are left out."""
    describe = sql.SQL(_DESCRIBE).format(oids=sql.SQL(", ").join(map(sql.Literal, oids)), first=FIRST_OF_USERS)
    cursor = connection.cursor(row_factory=dict_row)
    search_path.execute_in_tx(cursor, describe)
    by_oid = {row["oid"]: row for row in cursor.fetchall()}
    return {oid: _described(oid, by_oid) for oid in oids if oid in by_oid}


def _described(oid: int, by_oid: Mapping[int, Mapping[str, Any]]) -> UserType:
    row = by_oid[oid]
    attributes = tuple(_attribute(given, by_oid) for given in row["attributes"] or ())
    # Not what a domain is made of: a cast to an array of domains would cut, where one to an array of texts does not.
    element = _described(row["element"], by_oid) if row["element"] in by_oid else None
    return UserType(row["kind"], row["schema"], row["name"], row["extension"], element, attributes)


def _attribute(given: Mapping[str, Any], by_oid: Mapping[int, Mapping[str, Any]]) -> Attribute:
    base_type, full_type, oid = given["base_type"], given["full_type"], given["oid"]
    while oid in by_oid and by_oid[oid]["kind"] == "d":
        base_type, full_type, oid = (by_oid[oid][fact] for fact in ("base_type", "full_type", "base"))
    return Attribute(given["name"], base_type, full_type, _described(oid, by_oid) if oid in by_oid else None)
