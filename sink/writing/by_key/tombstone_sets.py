"""
Check that the tombstones of a table have the key columns and the order of the batch that reads them.

Runs in the commit, under the lock on the table's tombstones. Invariant: a batch reads only tombstones of its own keys
and order. While the table has living ones of others, the batch is refused, because it can tell neither which of its
rows were deleted, nor which are older.

A set of tombstones has the table's oid: so a renamed table is found, and one that was created again is not. The rows of
a partition are also those of the tables above it. So its set has the oid of the highest table in which the keys still
tell rows apart: where they have all columns that choose the partition, no other partition can have a row of the same
key. By the table's name, which the set has as well, :mod:`~pgonce.offsets_store.ledger.restored` finds it again after a
restore.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import bad_target
from pgonce.offsets_store.postgres import search_path
from pgonce.offsets_store.postgres.text import QUALIFIED_NAME

from .change_table import ChangeTable

# What values of a type are as JSON: those of one kind are compared, though the column has got another type since.
_KINDS = {
    **dict.fromkeys(("smallint", "integer", "bigint", "numeric"), "number"),
    **dict.fromkeys(("text", "character varying", "character", "bpchar"), "text"),
    **dict.fromkeys(("real", "double precision"), "float"),
}


@dataclass(frozen=True)
class Tombstones:
    """A set of tombstones; ``keys`` are the key columns in the order of the values in each tombstone's key."""

    set_id: int
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Identified:
    """How rows are identified: kinds of values by key column, in the order of the names; and what it is ordered by."""

    keys: Mapping[str, str]
    order_column: str
    order_kind: str

    def __str__(self) -> str:
        # Another role may have written these: without quotes, its text could do something to a terminal.
        keys = ", ".join(f"{name!r} ({kind!r})" for name, kind in self.keys.items())
        return f"by {keys} in the order of {self.order_column!r} ({self.order_kind!r})"


def identified(changes: ChangeTable) -> Identified:
    """How the rows of this batch are identified."""
    kinds = {c.column_name: _KINDS.get(c.base_type, c.base_type) for c in changes.target.columns}
    order = changes.upsert.newer_by or ""
    return Identified(
        {name: kinds[name] for name in sorted(k.target for k in changes.upsert.keys)}, order, kinds[order]
    )


def tombstones_in_tx(connection: psycopg.Connection, changes: ChangeTable, *, traced: bool) -> tuple[Tombstones, ...]:
    """
    The living tombstones of the target.

    :param traced: whether keys of this batch can be compared with remembered ones.
    :raises TargetError: TOMBSTONES_DIFFER.
    """
    sets = search_path.execute_in_tx(connection, sql.SQL(_FIND).format(oid=changes.target.oid)).fetchall()
    own, others = identified(changes), []
    found = []
    for set_id, keys, kinds, order, order_kind, until in sets:
        theirs = Identified(dict(zip(keys, kinds, strict=True)), order, order_kind)
        if traced and theirs == own:
            found.append(Tombstones(set_id, tuple(keys)))
        else:
            others.append((set_id, theirs, until))
    if others:
        raise bad_target(
            "TOMBSTONES_DIFFER",
            f"Earlier deletes from {changes.target.qualified_name} are remembered "
            f"{', and '.join(str(theirs) for _, theirs, _ in others)}, but the rows of this batch are identified "
            f"{own}. So it is unknown which of them are older than such a delete.",
            "Use the same keys and orderBy as before. If a column was only renamed, write its new name into "
            "key_columns or order_column of pgonce.tombstone_sets. If no change that is older than these deletes "
            "can still arrive, delete what is remembered: DELETE FROM pgonce.tombstone_sets WHERE tombstone_set_id "
            f"IN ({', '.join(str(set_id) for set_id, _, _ in others)}). pgonce itself forgets the deletes at "
            f"{max(until for _, _, until in others)} (page `change-data` of the documentation).",
        )
    return tuple(found)


def own_set_in_tx(connection: psycopg.Connection, changes: ChangeTable) -> int:
    """The id of the set for deletes of this batch; if it is new, it is not living before it has a tombstone."""
    own = identified(changes)
    statement = sql.SQL(_OWN).format(
        oid=changes.target.oid,
        keys=sql.Literal(list(own.keys)),
        kinds=sql.Literal(list(own.keys.values())),
        order=sql.Literal(own.order_column),
        order_kind=sql.Literal(own.order_kind),
    )
    row = search_path.execute_in_tx(connection, statement).fetchone()
    return int(row[0]) if row else 0


_NAME_OF = f"""
SELECT {QUALIFIED_NAME} AS name FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid =
"""

# The table, and those that it is a partition of.
_ABOVE = """
RECURSIVE above AS (
    SELECT {oid}::oid AS oid, 0 AS height UNION ALL
    SELECT i.inhparent, above.height + 1
    FROM above JOIN pg_class AS c ON c.oid = above.oid AND c.relispartition JOIN pg_inherits AS i ON i.inhrelid = c.oid
)
"""

# A set has the name that its table has now, for a dump that may be made soon. If it is of a table that is gone, and has
# the name of this table or of one above it, it goes: after a restore it would be taken for this table's. Tables that
# were attached as partitions bring their sets along.
_FIND = f"""
WITH {_ABOVE},
related AS (
    SELECT t.relid::oid AS oid FROM pg_partition_tree({{oid}}::oid::regclass) AS t UNION SELECT oid FROM above
),
found AS (
    SELECT s.*, now.name AS name_now, s.target IN (SELECT oid FROM related) AS is_own
    FROM pgonce.tombstone_sets AS s LEFT JOIN LATERAL ({_NAME_OF} s.target) AS now ON true
    WHERE s.target IN (SELECT oid FROM related)
       OR s.target_name IN (SELECT own.name FROM above, LATERAL ({_NAME_OF} above.oid) AS own)
),
gone AS (
    DELETE FROM pgonce.tombstone_sets AS s USING found AS f
    WHERE s.tombstone_set_id = f.tombstone_set_id AND f.name_now IS NULL
),
renamed AS (
    UPDATE pgonce.tombstone_sets AS s SET target_name = f.name_now FROM found AS f
    WHERE s.tombstone_set_id = f.tombstone_set_id AND f.name_now <> f.target_name
)
SELECT f.tombstone_set_id, f.key_columns, f.key_types, f.order_column, f.order_type,
       to_char(f.expires_at, 'YYYY-MM-DD HH24:MI TZ')
FROM found AS f WHERE f.is_own AND f.expires_at > statement_timestamp() ORDER BY 1
"""

# No other session makes the same one meanwhile, because that takes the same turn. A table that chooses partitions by an
# expression, whose number is 0, ends the way up.
_OWN = f"""
WITH {_ABOVE},
chooses_by_another AS (
    SELECT min(above.height) AS height
    FROM above JOIN pg_partitioned_table AS p ON p.partrelid = above.oid AND above.height > 0
    CROSS JOIN unnest(p.partattrs::int2[]) AS number
    LEFT JOIN pg_attribute AS a ON a.attrelid = p.partrelid AND a.attnum = number AND number <> 0
    WHERE a.attname IS NULL OR a.attname::text <> ALL ({{keys}}::text[])
),
own AS (SELECT above.oid AS target, {{keys}}::text[] AS key_columns, {{kinds}}::text[] AS key_types,
               {{order}}::text AS order_column, {{order_kind}}::text AS order_type
        FROM above, chooses_by_another AS another
        WHERE another.height IS NULL OR above.height < another.height ORDER BY above.height DESC LIMIT 1),
known AS (SELECT s.tombstone_set_id
          FROM pgonce.tombstone_sets AS s JOIN own USING (target, key_columns, key_types, order_column, order_type)
          LIMIT 1),
made AS (
    INSERT INTO pgonce.tombstone_sets AS s
        (target, target_name, key_columns, key_types, order_column, order_type, expires_at)
    SELECT own.target, now.name, own.key_columns, own.key_types, own.order_column, own.order_type, statement_timestamp()
    FROM own, LATERAL ({_NAME_OF} own.target) AS now WHERE NOT EXISTS (SELECT FROM known)
    RETURNING s.tombstone_set_id
)
SELECT tombstone_set_id FROM known UNION ALL SELECT tombstone_set_id FROM made
"""
