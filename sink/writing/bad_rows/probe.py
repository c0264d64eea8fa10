"""
Find the rows that the target's types, NOT NULL and CHECK refuse, whatever rows the target holds.

Runs in the commit, only after Postgres has refused rows: for dead letters, and for the text of an error. Invariant: it
writes nothing to the target, and what it creates is rolled back.

The rows are assigned, one after the other, to a temporary table that has the target's columns and its CHECKs. A
function in PL/pgSQL stops at the first row that is refused, notes it, and continues after it, with no round trip for
each. A sequence counts the rows, because a rollback does not reset it. So each row is assigned once, however many are
bad.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import psycopg
from psycopg import sql

from pgonce.offsets_store.postgres import search_path

from ...options.destination import Existing
from ..bad_row import FIRST, IS_ABOUT_A_ROW, BadRow, SearchBound, refused_as
from ..by_key.keys import Written
from ..by_key.statements import that_write, unread_columns, value_if_read, value_of
from ..checked_table import ColumnPlan
from ..rows import GatheredRows
from ..table.fit import Fit

PROBE = "pgonce_probe"
"""The name of the table; Postgres's messages have it."""
_NUMBERS = "pg_temp.pgonce_probed_rows"
# The rows are read in the order of their places.
_IN_ORDER = (
    "SET LOCAL synchronize_seqscans = off; SET LOCAL max_parallel_workers_per_gather = 0; "
    "SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off; "
    f"CREATE TEMPORARY SEQUENCE {_NUMBERS}"
)
# Operators, functions and types are qualified, because the user's search_path is in force: CHECKs and casts may call
# functions of the user's.
_WALK = """
CREATE FUNCTION pg_temp.pgonce_walk(
    assign pg_catalog.text, find pg_catalog.text, place pg_catalog.tid, suspects pg_catalog.text[],
    is_only_one pg_catalog.bool, also pg_catalog.text, most pg_catalog.int8, ends pg_catalog.timestamptz
) RETURNS TABLE (
    at pg_catalog.text, code pg_catalog.text, message pg_catalog.text, detail pg_catalog.text,
    of_column pg_catalog.text, of_type pg_catalog.text, suspect pg_catalog.int4
) LANGUAGE plpgsql AS $body$
DECLARE
    refused pg_catalog.int8 := 0;
    number pg_catalog.int8;
    of_constraint pg_catalog.text;
    of_table pg_catalog.text;
    last pg_catalog.int4 := 1;
    candidate pg_catalog.int4;
    other pg_catalog.text;
BEGIN
WHILE refused OPERATOR(pg_catalog.<) most AND pg_catalog.clock_timestamp() OPERATOR(pg_catalog.<=) ends LOOP
    BEGIN
        PERFORM pg_catalog.setval({numbers}, 1, false);
        EXECUTE assign USING place;
        RETURN;
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
            of_column = COLUMN_NAME, of_constraint = CONSTRAINT_NAME, of_table = TABLE_NAME,
            of_type = PG_DATATYPE_NAME;
        IF NOT ({is_about_a_row} OR code OPERATOR(pg_catalog.=) also) THEN
            RAISE;
        END IF;
    END;
    SELECT last_value INTO number FROM {sequence};
    EXECUTE find INTO STRICT place USING place, number;
    at := place::pg_catalog.text;
    suspect := NULL;
    IF of_table OPERATOR(pg_catalog.=) '' THEN
        -- Postgres does not say whose type or domain refuses a value: unless one column only can, they are tried, the
        -- one of the row before it first.
        IF is_only_one AND pg_catalog.left(code, 2) OPERATOR(pg_catalog.<>) '23' THEN
            suspect := 1;
        ELSE
            FOR candidate IN SELECT n FROM pg_catalog.generate_series(1, pg_catalog.cardinality(suspects)) AS n
                             ORDER BY n OPERATOR(pg_catalog.<>) last, n LOOP
                BEGIN
                    EXECUTE suspects[candidate] USING place;
                EXCEPTION WHEN OTHERS THEN
                    GET STACKED DIAGNOSTICS other = RETURNED_SQLSTATE;
                    IF other OPERATOR(pg_catalog.=) code THEN
                        suspect := candidate;
                        last := candidate;
                        EXIT;
                    END IF;
                END;
            END LOOP;
        END IF;
    END IF;
    refused := refused OPERATOR(pg_catalog.+) 1;
    RETURN NEXT;
END LOOP;
END $body$
"""
_CREATE = sql.SQL(_WALK).format(
    numbers=sql.Literal(_NUMBERS), sequence=sql.SQL(_NUMBERS), is_about_a_row=IS_ABOUT_A_ROW
)
_ASKED = """
SELECT * FROM pg_temp.pgonce_walk({assign}, {find}, {place}::pg_catalog.tid, {suspects}::pg_catalog.text[],
    {is_only_one}, {also}, {most},
    pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) pg_catalog.make_interval(secs => {seconds}))
"""
_BEHIND = sql.SQL("ctid OPERATOR(pg_catalog.>) $1")
_AT = sql.SQL("ctid OPERATOR(pg_catalog.=) $1")


def refused_rows(
    connection: psycopg.Connection,
    gathered: GatheredRows,
    written: Written,
    most: int,
    bound: SearchBound,
    code: str | None = None,
) -> list[BadRow]:
    """
    The gathered rows that are refused, with their columns where these are known; if there are too many, some of them.

    :param most: how many there may be.
    :param bound: how long it may take; its tries are not counted, because each row is assigned once.
    :param code: only the rows that are refused with this SQLSTATE.
    :raises psycopg.Error: if this cannot be found out (CREATE TABLE ... LIKE needs SELECT on the target, and the
        function needs PL/pgSQL).
    """
    bad: dict[str, BadRow] = {}
    with connection.transaction() as all_of_it:
        connection.execute(_IN_ORDER, prepare=False)
        connection.execute(_CREATE, prepare=False)
        probe = _Probe(connection, written, made_in_tx(connection, written), code, most + 1, bound)
        for row in _refused(probe, gathered):
            if code in (None, row.code):
                bad[row.place] = row
            if len(bad) > most:
                break
        raise psycopg.Rollback(all_of_it)
    return list(bad.values())


def _refused(probe: _Probe, gathered: GatheredRows) -> Iterator[BadRow]:
    changes, upsert = probe.written.changes, probe.written.upsert
    if changes is None or upsert is None:
        yield from probe.walk(gathered, probe.columns)
        return
    yield from probe.walk(gathered.only(that_write(changes)), probe.columns)
    # A delete need not have the other columns, so NOT NULL and CHECK do not say anything about it.
    compared = [column for column in probe.columns if column in (*upsert.keys, upsert.order_by)]
    is_deleted = gathered.only(sql.SQL("NOT ({})").format(that_write(changes)))
    refused = {row.place: row for row in probe.walk(is_deleted, compared) if not row.breaks_constraint}
    yield from refused.values()
    # Its other values are not assigned, but they are cast. So what is found here is tried by itself.
    cast = [column for column in probe.columns if column in compared or column.fitting.fit is Fit.CAST]
    for row in probe.walk(is_deleted, cast):
        if not row.breaks_constraint and row.place not in refused:
            yield replace(row, is_proven=False)


@dataclass(frozen=True)
class _Probe:
    """
    ``code`` is an SQLSTATE that is about a row although :func:`kind_of` does not tell it from others.

    ``enough`` is how many rows are looked for at a time.
    """

    connection: psycopg.Connection
    written: Written
    table: ProbeTable
    code: str | None
    enough: int
    bound: SearchBound

    @property
    def columns(self) -> Sequence[ColumnPlan]:
        return self.table.columns

    @cached_property
    def unread(self) -> Mapping[str, sql.Composable]:
        return unread_columns(self.written.plan, self.written.columns, self.written.upsert)

    @cached_property
    def suspects(self) -> list[ColumnPlan]:
        """The columns, those with nothing but a constraint last."""
        return sorted(self.columns, key=may_refuse_value, reverse=True)

    def walk(self, rows: GatheredRows, columns: Sequence[ColumnPlan]) -> Iterator[BadRow]:
        """The rows whose values for these columns are refused, in the order of their places."""
        place, rest = FIRST, rows.only(_BEHIND)
        find = sql.SQL("SELECT ctid FROM {} WHERE {} LIMIT 1 OFFSET $2 OPERATOR(pg_catalog.-) 1")
        while columns:
            asked = sql.SQL(_ASKED).format(
                assign=self._text(self._insert(rest, columns)),
                find=self._text(find.format(rest.source, rest.wanted)),
                place=place,
                suspects=[self._text(self._insert(rows.only(_AT), [column])) for column in self.suspects],
                is_only_one=sum(map(may_refuse_value, self.columns)) == 1,
                also=self.code or "",
                most=self.enough,
                seconds=self.bound.left()[1],
            )
            found = self.connection.execute(asked, prepare=False).fetchall()
            self.bound.refuse_longer()
            for place, *refused in found:
                yield self._bad_row(place, *refused)
            if len(found) < self.enough:
                return

    def _text(self, statement: sql.Composed) -> str:
        return statement.as_string(self.connection)

    def _bad_row(
        self, place: str, code: str, message: str, detail: str, column: str, type_name: str, suspect: int | None
    ) -> BadRow:
        named = self.suspects[suspect - 1].target if suspect else None
        is_proven = self._is_proof(is_of_value=not code.startswith("23") or bool(type_name))
        message = message.replace(PROBE, self.written.table.name)
        return refused_as(place, code, message, detail, column or named, is_proven=is_proven)

    def _insert(self, rows: GatheredRows, columns: Sequence[ColumnPlan]) -> sql.Composed:
        names = sql.SQL(", ").join(sql.Identifier(column.target) for column in columns)
        values = (sql.SQL("{} AS {}").format(self._value(column), sql.Identifier(column.target)) for column in columns)
        # Without a name of its own it would be that of a column which is called nextval.
        number = sql.Identifier("pgonce: the number of the row")
        # A number is drawn before a value is cast or assigned: nextval is volatile, so the inner SELECT is kept.
        return sql.SQL(
            "INSERT INTO {} ({names}) SELECT {names} FROM ("
            "SELECT pg_catalog.nextval({}) AS {number}, {} FROM {} WHERE {}) AS s"
        ).format(
            self.table.identifier,
            sql.Literal(_NUMBERS),
            sql.SQL(", ").join(values),
            rows.source,
            rows.wanted,
            names=names,
            number=number,
        )

    def _value(self, column: ColumnPlan) -> sql.Composable:
        is_unread = self.unread.get(column.target)
        return value_of(column) if is_unread is None else value_if_read(column, is_unread)

    def _is_proof(self, *, is_of_value: bool) -> bool:
        """Whether the target refuses the row too: a trigger may fill a value in, and an update may leave it alone."""
        existing = self.written.upsert.existing if self.written.upsert else Existing()
        if is_of_value:
            # With both, rows of stored keys are only updated, and then not every value is assigned.
            may_leave_alone = existing.keep_where is not None and bool(existing.update_columns)
            # A CHECK or a generated column may fail to compute what a trigger would have changed.
            return not may_leave_alone and not (self.table.has_row_triggers and self.table.has_expressions)
        assigns_all = existing.keep_where is None and not existing.update_columns
        return assigns_all and not self.table.has_row_triggers and not self.table.has_checks_of_place


@dataclass(frozen=True)
class ProbeTable:
    """
    The table, and the ``columns`` of the rows that may be refused.

    The others are about the target: triggers that may change a row before it is inserted; CHECKs or generated columns,
    which compute something; and CHECKs of a system column such as ``tableoid``, which says where a row is.
    """

    columns: Sequence[ColumnPlan]
    has_row_triggers: bool
    has_expressions: bool
    has_checks_of_place: bool
    identifier: ClassVar[sql.Identifier] = sql.Identifier("pg_temp", PROBE)


def made_in_tx(connection: psycopg.Connection, written: Written) -> ProbeTable:
    """
    Create it, for rows that were to be written so.

    :raises psycopg.Error: if the role may not read the target, or may not create temporary tables.
    """
    table, soft = written.table, written.changes and written.changes.soft_column
    columns = [column for column in written.plan if column.target != soft]
    create = sql.SQL("CREATE TEMPORARY TABLE {} (LIKE {} INCLUDING CONSTRAINTS INCLUDING GENERATED) ON COMMIT DROP")
    connection.execute(create.format(ProbeTable.identifier, table.identifier))
    _drop_others(connection, {column.target for column in columns})
    demanding = {name for (name,) in search_path.execute_in_tx(connection, sql.SQL(_DEMANDING)).fetchall()}
    # The others take every value, so they need not be written.
    columns = [column for column in columns if column.target in demanding or may_refuse_value(column)]
    about_rows = search_path.execute_in_tx(connection, sql.SQL(_ABOUT_ROWS).format(table.oid))
    return ProbeTable(columns, *(about_rows.fetchone() or (True, True, True)))


def may_refuse_value(column: ColumnPlan) -> bool:
    """Whether the type of a column may refuse a value: not if the value has just this type, without a modifier."""
    return column.fitting.fit is not Fit.EXACT or "(" in column.full_type


def _drop_others(connection: psycopg.Connection, brought: set[str]) -> None:
    """Drop the columns that the rows do not bring."""
    # They have a default in the target, or are set by a soft delete: nothing is known here of what a CHECK, a generated
    # column or a domain says of them, so these go too.
    stored = search_path.execute_in_tx(connection, sql.SQL(_STORED)).fetchall()
    drop = sql.SQL("DROP COLUMN IF EXISTS {} CASCADE")
    gone = [drop.format(sql.Identifier(name)) for (name,) in stored if name not in brought]
    if gone:
        connection.execute(sql.SQL("ALTER TABLE {} {}").format(ProbeTable.identifier, sql.SQL(", ").join(gone)))


_STORED = """
SELECT attname FROM pg_attribute
WHERE attrelid = 'pg_temp.pgonce_probe'::regclass AND attnum > 0 AND attgenerated = '' AND NOT attisdropped
"""
# Columns on which a constraint may depend: NOT NULL, a CHECK, a domain's. A CHECK of the whole row, and one of a column
# that is generated, may depend on any.
_DEMANDING = """
WITH checks AS (
    SELECT k.attnum FROM pg_constraint AS c CROSS JOIN unnest(coalesce(nullif(c.conkey, '{}'), '{0}')) AS k(attnum)
    WHERE c.conrelid = 'pg_temp.pgonce_probe'::regclass AND c.contype = 'c'
)
SELECT a.attname FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
WHERE a.attrelid = 'pg_temp.pgonce_probe'::regclass AND a.attnum > 0 AND NOT a.attisdropped AND (
    a.attnotnull OR t.typtype = 'd' OR a.attnum IN (SELECT attnum FROM checks)
    OR EXISTS (SELECT FROM checks WHERE attnum = 0)
    OR EXISTS (SELECT FROM pg_attribute AS g WHERE g.attrelid = a.attrelid AND g.attgenerated <> ''))
"""
# 7: a trigger for each row (1), before (2), insert (4). Of a partitioned table, those of its partitions count too.
_ABOUT_ROWS = """
SELECT EXISTS (
    SELECT FROM pg_trigger
    WHERE tgrelid IN (SELECT {0} UNION ALL SELECT relid FROM pg_partition_tree({0}))
    AND NOT tgisinternal AND tgtype & 7 = 7),
    EXISTS (SELECT FROM pg_constraint WHERE conrelid = {0} AND contype = 'c')
    OR EXISTS (SELECT FROM pg_attribute WHERE attrelid = {0} AND attgenerated <> ''),
    EXISTS (SELECT FROM pg_constraint WHERE conrelid = {0} AND contype = 'c' AND 0 > ANY (conkey))
"""
