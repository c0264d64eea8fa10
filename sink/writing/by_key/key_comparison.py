"""
Find how the target compares keys, and which of two rows is the newer one.

Runs in the commit. Invariant: two rows have the same key exactly if the unique index that ON CONFLICT uses calls them
equal, by its collations and operator classes; the newer one is found by the collation of the table's own column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from psycopg import sql

from ..table.catalogue import TargetTable
from .keys import ComparedUpsert, Comparison, Upsert

# A type's default operator class is not named, and neither is the database's collation, unless the column has another
# one. ON CONFLICT takes any unique index on the key columns, with any collations, operator classes and INCLUDEd
# columns; but none on expressions.
_COMPARED = """
SELECT x.index_oid, x.attname::text, x.by_equality,
       c.oid IS NULL AND x.less IS NULL AND coalesce(en.nspname = 'pg_catalog', true) AS is_default,
       coalesce(c.collisdeterministic, true) AND x.less IS NULL AND coalesce(en.nspname = 'pg_catalog', false)
           AS is_by_value,
       coalesce(c.collisdeterministic, true) AS is_deterministic,
       quote_ident(cn.nspname) || '.' || quote_ident(c.collname),
       'OPERATOR(' || quote_ident(pn.nspname) || '.' || p.oprname || ')',
       'OPERATOR(' || quote_ident(en.nspname) || '.' || e.oprname || ')'
FROM (
    SELECT i.indexrelid::bigint AS index_oid, n AS place, a.attname, i.indcollation[n] AS collation,
        a.attcollation AS of_column, m.amopopr AS less, q.amopopr AS equal,
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
    SELECT 0, 0, a.attname, a.attcollation, a.attcollation, NULL, NULL, false
    FROM pg_attribute AS a WHERE a.attrelid = {oid} AND a.attname::text = {order_by}
) AS x
LEFT JOIN pg_collation AS c ON c.oid = x.collation
    AND (c.oid <> 'pg_catalog."default"'::regcollation OR x.of_column <> c.oid)
LEFT JOIN pg_namespace AS cn ON cn.oid = c.collnamespace
LEFT JOIN pg_operator AS p ON p.oid = x.less
LEFT JOIN pg_namespace AS pn ON pn.oid = p.oprnamespace
LEFT JOIN pg_operator AS e ON e.oid = x.equal
LEFT JOIN pg_namespace AS en ON en.oid = e.oprnamespace
ORDER BY x.index_oid, x.place
"""


def compared_statement(table: TargetTable, upsert: Upsert) -> sql.Composed:
    """The query for how the table's unique indexes, and its order column, compare; it needs our search_path."""
    order_by = upsert.order_by.target if upsert.order_by else None
    return sql.SQL(_COMPARED).format(oid=table.oid, order_by=sql.Literal(order_by))


def as_compared(upsert: Upsert, answer: Iterable[Sequence[Any]]) -> ComparedUpsert:
    """
    The upsert as the table compares keys, from the answer to :func:`compared_statement`.

    If there are several unique indexes on the keys, the one that calls more keys equal decides. If another one calls
    keys equal that this one does not, Postgres refuses the rows.
    """
    by_index = {
        index: [Comparison(*row[1:6], *(text and sql.SQL(text) for text in row[6:])) for row in rows]
        for index, rows in groupby(answer, key=itemgetter(0))
    }
    own = by_index.pop(_TABLE, [])
    keys = [key.target for key in upsert.keys]
    unique = [index for index in by_index.values() if {column.name for column in index} == set(keys)]
    compared = {column.name: column for column in (*own, *max(unique, key=_looseness, default=[]))}
    comparisons = {name: column for name, column in compared.items() if not column.is_default}
    by_type = [[column.name for column in index if column.by_equality] for index in unique]
    return ComparedUpsert(
        upsert.keys,
        upsert.order_by,
        upsert.existing,
        upsert.of_letters,
        comparisons,
        has_index=bool(unique),
        # MERGE finds rows by equality, ON CONFLICT by a unique index: it must be there, mean the same, and have the
        # keys in their order, because a join goes through the rows in the order of the index.
        by_equality=comparisons.keys().isdisjoint(keys) and keys in by_type,
    )


# In the place of an index, for the table's own column.
_TABLE = 0


def _looseness(index: Sequence[Comparison]) -> tuple[int, int]:
    return sum(not column.is_deterministic for column in index), sum(column.less is not None for column in index)
