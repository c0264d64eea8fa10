"""
What stands in the way of altering a table, as far as the catalogue tells?

Runs before Spark's job and in the commit. Invariant: it only reads. Postgres has the last word; what it would do by
reading the whole table (checking a CHECK constraint, making an index again) stands in the way, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from pgonce.offsets_store.postgres import search_path

from ..table.catalogue import TargetTable
from .new_columns import Change, not_altered

# Indexes on plain columns are kept, and so are the constraints that stand on them; a default is converted. (A foreign
# key is made again, which locks the other table.)
_OBSTACLES = """
WITH RECURSIVE tree AS (
    SELECT {oid}::oid AS relid UNION SELECT i.inhrelid FROM pg_inherits AS i JOIN tree AS t ON t.relid = i.inhparent
),
wider AS (
    SELECT a.attrelid, a.attnum, a.attname, a.attinhcount, a.atttypid, a.atttypmod
    FROM tree AS t JOIN pg_attribute AS a ON a.attrelid = t.relid WHERE a.attname = ANY ({names}::name[])
)
SELECT found.reason, found.altered FROM (
    SELECT 1 AS place, format('it is a partition of %s', r.root) AS reason, r.root AS altered
    FROM pg_class AS c, LATERAL (SELECT pg_partition_root(c.oid)::regclass::text AS root) AS r
    WHERE c.oid = {oid} AND c.relispartition
    UNION ALL
    SELECT 2, format('its columns are those of the type %s', c.reloftype::regtype), NULL
    FROM pg_class AS c WHERE c.oid = {oid} AND c.reloftype <> 0
    UNION ALL
    SELECT 3, format('only the owner of %s (%s) may do that, and the role %s is not a member of it',
                     c.oid::regclass, pg_get_userbyid(c.relowner), current_user), NULL
    FROM tree AS t JOIN pg_class AS c ON c.oid = t.relid WHERE NOT pg_has_role(c.relowner, 'USAGE')
    UNION ALL
    SELECT 4, format('column %I is of the domain %s', w.attname, format_type(w.atttypid, w.atttypmod)), NULL
    FROM wider AS w JOIN pg_type AS y ON y.oid = w.atttypid WHERE w.attrelid = {oid} AND y.typtype = 'd'
    UNION ALL
    SELECT 5, format('column %I is inherited from another table', w.attname), NULL
    FROM wider AS w WHERE w.attrelid = {oid} AND w.attinhcount > 0
    UNION ALL
    SELECT 6, format('column %I is in the partition key of %s', w.attname, p.partrelid::regclass), NULL
    FROM wider AS w JOIN pg_partitioned_table AS p ON p.partrelid = w.attrelid
    WHERE w.attnum = ANY (p.partattrs::int2[])
    UNION ALL
    SELECT 7, format('%s depends on column %I', coalesce(
               (SELECT format('view %s', v.ev_class::regclass) FROM pg_rewrite AS v
                WHERE d.classid = 'pg_rewrite'::regclass AND v.oid = d.objid AND v.rulename = '_RETURN'),
               pg_describe_object(d.classid, d.objid, d.objsubid)), w.attname), NULL
    FROM wider AS w
    JOIN pg_depend AS d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = w.attrelid AND d.refobjsubid = w.attnum
    WHERE NOT EXISTS (SELECT FROM pg_index AS i WHERE d.classid = 'pg_class'::regclass AND i.indexrelid = d.objid
                      AND i.indexprs IS NULL AND i.indpred IS NULL AND NOT i.indisexclusion)
    AND NOT EXISTS (SELECT FROM pg_constraint AS k WHERE d.classid = 'pg_constraint'::regclass AND k.oid = d.objid
                    AND k.contype IN ('p', 'u', 'n'))
    AND NOT EXISTS (SELECT FROM pg_attrdef AS f WHERE d.classid = 'pg_attrdef'::regclass AND f.oid = d.objid
                    AND f.adrelid = w.attrelid AND f.adnum = w.attnum)
    AND NOT EXISTS (SELECT FROM pg_class AS s WHERE d.classid = 'pg_class'::regclass AND s.oid = d.objid
                    AND s.relkind = 'S')
    AND d.classid <> 'pg_statistic_ext'::regclass
) AS found
ORDER BY found.place, found.reason LIMIT 1
"""


def refuse_what_stands_in_the_way(
    connection: psycopg.Connection, table: TargetTable, changes: Sequence[Change]
) -> None:
    """:raises TargetError: TARGET_NOT_ALTERED, naming what stands in the way, and the statement to run."""
    names = [change.column for change in changes if change.before is not None]
    cursor = connection.cursor()
    search_path.execute_in_tx(cursor, sql.SQL(_OBSTACLES).format(oid=table.oid, names=sql.Literal(names)))
    row = cursor.fetchone()
    if row is not None:
        raise not_altered(table, changes, row[0], altered=row[1])
