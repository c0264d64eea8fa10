"""
Find how the target compares keys, and which of two rows is the newer one.

Runs in the commit. Invariant: two rows have the same key exactly if the unique index that ON CONFLICT uses calls them
equal, by its collations and operator classes; the newer one is found by the collation of the table's own column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from psycopg import sql

from ..table.catalogue import TargetTable
from .keys import Comparison, Upsert


class ComparedColumn(NamedTuple):
    """
    A column of a unique index, in the index's order; ``index_oid`` is 0 for the table's own column.

    ``by_equality`` says that the index calls two values equal exactly if ``=`` does. None means the default.
    """

    index_oid: int
    column: str
    by_equality: bool
    collation_schema: str | None
    collation: str | None
    is_deterministic: bool | None
    less_schema: str | None
    less: str | None
    equal_schema: str | None
    equal: str | None


# The database's collation and a type's default operator class are not named. ON CONFLICT takes any unique index on the
# key columns, with any collations, operator classes and INCLUDEd columns; but none on expressions.
_COMPARED = """
SELECT x.index_oid, x.attname::text, x.by_equality, cn.nspname::text, c.collname::text, c.collisdeterministic,
       pn.nspname::text, p.oprname::text, en.nspname::text, e.oprname::text
FROM (
    SELECT i.indexrelid::bigint AS index_oid, n AS place, a.attname, i.indcollation[n] AS collation, m.amopopr AS less,
        q.amopopr AS equal,
        o.opcdefault AND i.indcollation[n] = a.attcollation
        AND a.attcollation IN (0, 'pg_catalog."default"'::regcollation)
        AND a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'numeric'::regtype, 'text'::regtype,
                           'varchar'::regtype, 'uuid'::regtype, 'date'::regtype, 'timestamp'::regtype,
                           'timestamptz'::regtype) AS by_equality
    FROM pg_index AS i
    CROSS JOIN generate_series(0, i.indnkeyatts - 1) AS n
    JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[n]
    JOIN pg_opclass AS o ON o.oid = i.indclass[n]
    LEFT JOIN pg_amop AS m ON NOT o.opcdefault AND m.amopfamily = o.opcfamily AND m.amopstrategy = 1
        AND m.amoplefttype = o.opcintype AND m.amoprighttype = o.opcintype
    LEFT JOIN pg_amop AS q ON q.amopfamily = o.opcfamily AND q.amopstrategy = 3
        AND q.amoplefttype = o.opcintype AND q.amoprighttype = o.opcintype
    WHERE i.indrelid = {oid} AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indislive
    AND i.indpred IS NULL AND i.indexprs IS NULL
    UNION ALL
    SELECT 0, 0, a.attname, a.attcollation, NULL, NULL, false
    FROM pg_attribute AS a WHERE a.attrelid = {oid} AND a.attname::text = {order_by}
) AS x
LEFT JOIN pg_collation AS c ON c.oid = x.collation AND c.oid <> 'pg_catalog."default"'::regcollation
LEFT JOIN pg_namespace AS cn ON cn.oid = c.collnamespace
LEFT JOIN pg_operator AS p ON p.oid = x.less
LEFT JOIN pg_namespace AS pn ON pn.oid = p.oprnamespace
LEFT JOIN pg_operator AS e ON e.oid = x.equal
LEFT JOIN pg_namespace AS en ON en.oid = e.oprnamespace
ORDER BY x.index_oid, x.place
"""


def compared_statement(table: TargetTable, upsert: Upsert) -> sql.Composed:
    """The query whose rows are a :class:`ComparedColumn` each; it needs our search_path."""
    order_by = upsert.order_by.target if upsert.order_by else None
    return sql.SQL(_COMPARED).format(oid=table.oid, order_by=sql.Literal(order_by))


def has_index_by_equality(compared: Iterable[ComparedColumn], upsert: Upsert) -> bool:
    """Whether a unique index has the keys in their order, and calls them equal exactly if ``=`` does."""
    keys = [key.target for key in upsert.keys]
    indexes = (list(columns) for index, columns in _by_index(compared) if index)
    return any([c.column for c in columns] == keys and all(c.by_equality for c in columns) for columns in indexes)


def comparisons(compared: Iterable[ComparedColumn], upsert: Upsert) -> dict[str, Comparison]:
    """
    How columns are compared that do not follow the default of their type, by name.

    If there are several unique indexes on the keys, the one that calls more keys equal decides. If another one calls
    keys equal that this one does not, Postgres refuses the rows.
    """
    of_index = {index: {column.column: column for column in columns} for index, columns in _by_index(compared)}
    keys = {key.target for key in upsert.keys}
    unique = [columns for index, columns in of_index.items() if index and columns.keys() == keys]
    by_key = max(unique, key=_looseness, default={})
    by_order = of_index.get(0, {})
    return {
        name: Comparison(
            _identifier(column.collation_schema, column.collation),
            _operator(column.less_schema, column.less),
            _operator(column.equal_schema, column.equal),
            column.is_deterministic is not False and column.less is None and column.equal_schema == "pg_catalog",
        )
        for name, column in {**by_order, **by_key}.items()
        if column.collation or column.less or column.equal_schema not in (None, "pg_catalog")
    }


def has_unique_index(compared: Iterable[ComparedColumn], upsert: Upsert) -> bool:
    """Whether there is a unique index on exactly the keys, by which rows are found."""
    keys = {key.target for key in upsert.keys}
    return any(index and {column.column for column in columns} == keys for index, columns in _by_index(compared))


def _by_index(compared: Iterable[ComparedColumn]) -> Iterable[tuple[int, Iterator[ComparedColumn]]]:
    return groupby(compared, key=attrgetter("index_oid"))


def _identifier(schema: str | None, name: str | None) -> sql.Identifier | None:
    return sql.Identifier(schema, name) if schema and name else None


def _operator(schema: str | None, name: str | None) -> sql.Composed | None:
    return sql.SQL("OPERATOR({}.{})").format(sql.Identifier(schema), sql.SQL(name)) if schema and name else None


def _looseness(columns: dict[str, ComparedColumn]) -> tuple[int, int]:
    found = columns.values()
    return sum(c.is_deterministic is False for c in found), sum(c.less is not None for c in found)
