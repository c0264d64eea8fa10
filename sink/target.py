"""
What is the target table, and can a batch be published into it?

Runs in the commit. Invariant: both transports and all ways in pass the same check, so that what is refused does
not depend on how large a batch happened to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from sink.errors import TargetError
from sink.options import Destination
from sink.type_mapping import EncodedColumn, Fit, Fitting, fit

NOTHING = "Nothing of this batch was written, and the stored offsets have not moved."


@dataclass(frozen=True)
class TargetColumn:
    """A column of the table: its type without and with its modifier (``numeric``, ``numeric(10,2)``)."""

    column_name: str
    base_type: str
    full_type: str
    required: bool
    always_generated: bool


@dataclass(frozen=True)
class TargetTable:
    """A table as Postgres's catalogue has it."""

    schema: str
    name: str
    kind: str
    persistence: str
    rules: bool
    row_security: bool
    unsafe_partition: str | None
    columns: tuple[TargetColumn, ...]

    @property
    def identifier(self) -> sql.Identifier:
        """Its qualified name, quoted."""
        return sql.Identifier(self.schema, self.name)

    @property
    def qualified_name(self) -> str:
        """Its qualified name as people write it; the default sink name."""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class ColumnPlan:
    """How one encoded column gets into one table column."""

    source: str
    target: str
    fitting: Fitting


@dataclass(frozen=True)
class ResolvedName:
    """A table's schema and name, and its oid where it exists."""

    schema: str
    name: str
    oid: int | None

    @property
    def qualified_name(self) -> str:
        """The name as people write it; the default sink name."""
        return f"{self.schema}.{self.name}"


def resolve_table(connection: psycopg.Connection, table: str) -> ResolvedName:
    """
    The table behind what the user wrote, by Postgres's own rules for quotes, case and search path.

    A table that does not exist yet gets the schema in which CREATE TABLE would put it.
    """
    try:
        found = connection.execute(_RESOLVE, {"table": table}).fetchone()
    except (psycopg.errors.InvalidName, psycopg.errors.SyntaxError, psycopg.errors.FeatureNotSupported):
        found = None
    if found is None or found[0] is None or found[1] is None:
        raise TargetError(
            "BAD_TABLE_NAME",
            f"table={table!r} is not a table's name.",
            NOTHING,
            "Write table or schema.table, and put names with capitals or odd characters in double quotes: "
            "'app.\"Orders\"'.",
        )
    return ResolvedName(*found)


# An absent table cannot be looked up, so its name is split the way to_regclass would split it.
_RESOLVE = """
SELECT coalesce(n.nspname, CASE cardinality(p) WHEN 1 THEN current_schema() WHEN 2 THEN p[1] END),
       coalesce(c.relname, CASE cardinality(p) WHEN 1 THEN p[1] WHEN 2 THEN p[2] END), c.oid
FROM (SELECT pg_catalog.parse_ident(%(table)s) AS p, pg_catalog.to_regclass(%(table)s) AS oid) AS t
LEFT JOIN pg_catalog.pg_class AS c ON c.oid = t.oid
LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
"""

# Domains are resolved to what they are made of, however deep: a domain's binary form is its base type's (COPY runs
# its checks), while an explicit cast to a domain would cut text.
_DESCRIBE = """
WITH RECURSIVE resolved AS (
    SELECT a.attrelid, a.attnum, a.atttypid AS type_oid, a.atttypmod AS typmod
    FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT r.attrelid, r.attnum, d.typbasetype, d.typtypmod
    FROM resolved AS r JOIN pg_catalog.pg_type AS d ON d.oid = r.type_oid AND d.typtype = 'd'
)
SELECT n.nspname AS schema, c.relname AS name, c.relkind::text AS kind, c.relpersistence::text AS persistence,
       -- relhasrules stays true for a while after the last rule was dropped.
       EXISTS (SELECT FROM pg_catalog.pg_rewrite AS w WHERE w.ev_class = c.oid AND w.rulename <> '_RETURN') AS rules,
       pg_catalog.row_security_active(c.oid) AS row_security,
       (SELECT t.relid::pg_catalog.regclass::text
        FROM pg_catalog.pg_partition_tree(c.oid) AS t JOIN pg_catalog.pg_class AS p ON p.oid = t.relid
        WHERE p.relpersistence <> 'p' OR p.relkind NOT IN ('r', 'p') LIMIT 1) AS unsafe_partition,
       a.attname::text AS column_name,
       pg_catalog.format_type(r.type_oid, NULL) AS base_type,
       pg_catalog.format_type(r.type_oid, r.typmod) AS full_type,
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AS required,
       a.attidentity = 'a' OR a.attgenerated <> '' AS always_generated
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN resolved AS r ON r.attnum = a.attnum
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_type AS y WHERE y.oid = r.type_oid AND y.typtype = 'd')
WHERE c.oid = %(oid)s
ORDER BY a.attnum
"""


def describe_table(connection: psycopg.Connection, oid: int) -> TargetTable:
    """The table as the catalogue has it now. Read for every batch: people alter tables under a stream."""
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_DESCRIBE, {"oid": oid}).fetchall()
    of_table = {field.name: rows[0][field.name] for field in fields(TargetTable) if field.name != "columns"}
    columns = (
        TargetColumn(**{field.name: row[field.name] for field in fields(TargetColumn)})
        for row in rows
        if row["column_name"] is not None
    )
    return TargetTable(**of_table, columns=tuple(columns))


def check_table(table: TargetTable) -> None:
    """
    Refuse a table that cannot hold rows durably, or that would do something else with them.

    :raises TargetError: saying which and why.
    """
    name = table.qualified_name
    if table.kind not in ("r", "p"):
        kinds = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}
        raise TargetError(
            "TARGET_NOT_A_TABLE",
            f"{name} is {kinds.get(table.kind, 'not a table')}, whose rows do not live in this database's "
            "transactions.",
            NOTHING,
            "Write into an ordinary or partitioned table.",
        )
    if table.persistence != "p" or table.unsafe_partition:
        culprit = table.unsafe_partition or name
        raise TargetError(
            "TARGET_NOT_DURABLE",
            f"{culprit} is unlogged, temporary or foreign: a crash of Postgres would empty it (or leave it "
            "behind) while "
            "the ledger says that its rows are there.",
            NOTHING,
            f"ALTER TABLE {culprit} SET LOGGED, or detach that partition.",
        )
    if table.rules:
        raise TargetError(
            "TARGET_HAS_RULES",
            f"{name} has rewrite rules. COPY ignores them and INSERT obeys them, so a batch's size would decide.",
            NOTHING,
            "Replace the rules by triggers, which both obey.",
        )


def plan_columns(table: TargetTable, encoded: Sequence[EncodedColumn]) -> tuple[ColumnPlan, ...]:
    """
    How each encoded column gets into the table.

    Names match exactly, or else without regard to case where only one column does.

    :raises TargetError: for columns that the table lacks, needs, generates itself, or cannot hold.
    """
    plans = []
    for column in encoded:
        target = _find(table, column.name)
        if target.always_generated:
            raise TargetError(
                "COLUMN_GENERATED",
                f"Column {target.column_name!r} of {table.qualified_name} is generated by Postgres, but the rows bring "
                "a value for it.",
                NOTHING,
                f"Drop {column.name!r} from the DataFrame.",
            )
        fitting = fit(column, target.base_type, target.full_type)
        if fitting.fit is Fit.REFUSED:
            raise TargetError(
                "TYPE_MISMATCH",
                f"{table.qualified_name} cannot take the rows. {fitting.reason}",
                NOTHING,
                "Cast the column in Spark to a type that the table takes (docs/types.md), or alter the table.",
            )
        plans.append(ColumnPlan(column.name, target.column_name, fitting))
    named = {plan.target for plan in plans}
    if len(named) < len(plans):
        raise TargetError(
            "COLUMN_TWICE",
            f"Two columns of the rows go into one column of {table.qualified_name}.",
            NOTHING,
            "Give the DataFrame's columns names that differ in more than their case.",
        )
    missing = [column.column_name for column in table.columns if column.required and column.column_name not in named]
    if missing:
        raise TargetError(
            "COLUMN_MISSING",
            f"{table.qualified_name} needs values for {', '.join(missing)} (NOT NULL, no default), which the rows "
            "lack.",
            NOTHING,
            "Add these columns to the DataFrame, or give them defaults in the table.",
        )
    return tuple(plans)


def _find(table: TargetTable, name: str) -> TargetColumn:
    exact = [column for column in table.columns if column.column_name == name]
    folded = [column for column in table.columns if column.column_name.lower() == name.lower()]
    found = exact or folded
    if len(found) != 1:
        raise TargetError(
            "COLUMN_UNKNOWN",
            f"{table.qualified_name} has no column {name!r}"
            + (", but several that differ from it only in case." if found else "."),
            NOTHING,
            f"Its columns are {', '.join(column.column_name for column in table.columns)}. Rename or drop {name!r} in "
            "the DataFrame, or add the column to the table.",
        )
    return found[0]


def create_table(
    connection: psycopg.Connection, schema: str, name: str, encoded: Sequence[EncodedColumn], keys: Sequence[str]
) -> None:
    """Create the table that fits the rows, with ``keys`` as its primary key."""
    parts = [sql.SQL("{} {}").format(sql.Identifier(c.name), sql.SQL(c.ddl_type)) for c in encoded]
    if keys:
        parts.append(sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, keys))))
    connection.execute(
        sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(sql.Identifier(schema, name), sql.SQL(", ").join(parts))
    )


def target_for(
    connection: psycopg.Connection, destination: Destination, encoded: Sequence[EncodedColumn]
) -> tuple[TargetTable, tuple[ColumnPlan, ...]]:
    """
    The checked target of a batch and the plan of its columns; creates the table where the user asked for that.

    :raises TargetError: where the table is missing, unfit, or does not take these columns.
    """
    found = resolve_table(connection, destination.table)
    if found.oid is None and destination.create_table:
        create_table(connection, found.schema, found.name, encoded, destination.keys)
        found = resolve_table(connection, destination.table)
    if found.oid is None:
        raise TargetError(
            "TARGET_MISSING",
            f"There is no table {found.qualified_name}.",
            NOTHING,
            "Create it, or set createTable=true. An unqualified name is looked up along the role's search_path.",
        )
    table = describe_table(connection, found.oid)
    check_table(table)
    return table, plan_columns(table, encoded)
