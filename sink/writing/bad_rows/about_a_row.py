"""
Which errors of Postgres may be about a row, and how long such rows are looked for, and how many of them are put aside.

Runs in the commit. Invariants: every error that is not on the list stops the batch, as it does without dead letters: a
full disk, a missing table, a lock, a missing permission, and a trigger's error about another table concern every row. A
search for bad rows ends; and if no row of a batch of several rows can be written, the batch is refused, not put aside
as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NullKeyError, NullOrderError, TargetError, bad_target
from pgonce.offsets_store.postgres import search_path
from pgonce.offsets_store.postgres.refused_rows import shortened

from ...encoding.unfit_rows import UnfitRow
from ..by_key.one_by_one import NOT_READ
from ..table.catalogue import TargetTable


@dataclass(frozen=True)
class BadRow:
    """
    A row at ``place``, and why it is refused: an SQLSTATE or a code of ours, the message, the column if it is known.
    """

    place: str
    code: str
    message: str
    column_name: str | None = None


def refused_by(error: psycopg.Error) -> BadRow:
    """The row that was refused with ``error``; its place is not known."""
    diag = error.diag
    message = diag.message_primary or str(error)
    return refused_as("", error.sqlstate or "", message, diag.message_detail, diag.column_name)


def refused_as(place: str, code: str, message: str, detail: str | None, column_name: str | None) -> BadRow:
    """The row at ``place``, which Postgres refused with this."""
    # Other details have the whole row, which an error must not show; the letter has it anyhow.
    if detail and detail.startswith("Key "):
        message = f"{message} ({detail})"
    return BadRow(place, code, shortened(message), column_name or None)


def at(place: str) -> sql.Composable:
    """The condition that picks the row at this place."""
    return sql.SQL("ctid OPERATOR(pg_catalog.=) {}::pg_catalog.tid").format(sql.Literal(place))


def up_to(place: str) -> sql.Composable:
    """The condition that picks this row and those before it."""
    return sql.SQL("ctid OPERATOR(pg_catalog.<=) {}::pg_catalog.tid").format(sql.Literal(place))


class Kind(Enum):
    """What an error may be about."""

    VALUE = "a value that the type of its column does not take"
    CONSTRAINT = "a row that a constraint of a table refuses"


# The one list of SQLSTATEs: searches in the server are made with it.
OF_EVERY_ROW = frozenset({"2200H", "22P03", "22P04"})
"""A sequence is used up; our own encoding is wrong. Neither has to do with a row."""
NOT_NULL, CHECK = "23502", "23514"
UNIQUE, FOREIGN_KEY, RESTRICT, EXCLUSION = "23505", "23503", "23001", "23P01"
ALONE = frozenset({NOT_NULL, CHECK})
CONSTRAINTS = frozenset({*ALONE, UNIQUE, FOREIGN_KEY, RESTRICT, EXCLUSION})
TOO_LARGE = frozenset({"54000", "54001"})
"""What is made of a value is too large or too deep: an entry of an index, a generated column, a document."""


def kind_of(error: BaseException) -> Kind | None:
    """
    What an error may be about, as far as it says so itself; None if it is not about a row.

    A value that is refused is not enough: Postgres names no table then, so that a trigger may have raised it, and the
    row has to be found among those of the batch.
    """
    if not isinstance(error, psycopg.Error):
        return None
    state, diag = error.sqlstate or "", error.diag
    if state.startswith("22") or state in TOO_LARGE:
        return None if state in OF_EVERY_ROW else Kind.VALUE
    if state in ALONE and diag.datatype_name:
        # The constraint of a domain.
        return Kind.VALUE
    # Without a constraint, 23514 says that a partition is missing.
    named = diag.column_name if state == NOT_NULL else diag.constraint_name
    return Kind.CONSTRAINT if state in CONSTRAINTS and diag.table_name and named else None


def _array(states: Collection[str]) -> sql.Composable:
    return sql.SQL("(ARRAY[{}])").format(sql.SQL(", ").join(map(sql.Literal, sorted(states))))


def is_about_a_row(names: TargetNames, also: str) -> sql.Composed:
    """
    The same in PL/pgSQL, of variables that are called as ``GET STACKED DIAGNOSTICS`` is asked for them.

    :param names: a constraint of another table is not about a row of the target.
    :param also: an SQLSTATE that is about a row although :func:`kind_of` does not tell it from others.
    """
    return sql.SQL(_IS_ABOUT_A_ROW).format(
        every_row=_array(OF_EVERY_ROW),
        too_large=_array({*TOO_LARGE, NOT_READ, also}),
        alone=_array(ALONE),
        constraints=_array(CONSTRAINTS),
        not_null=NOT_NULL,
        is_target=names.has(sql.SQL("of_schema"), sql.SQL("of_table")),
    )


_IS_ABOUT_A_ROW = """(CASE
    WHEN code OPERATOR(pg_catalog.=) ANY {too_large} THEN of_table OPERATOR(pg_catalog.=) '' OR {is_target}
    WHEN pg_catalog.left(code, 2) OPERATOR(pg_catalog.=) '22' THEN code OPERATOR(pg_catalog.<>) ALL {every_row}
    WHEN code OPERATOR(pg_catalog.=) ANY {alone} AND of_type OPERATOR(pg_catalog.<>) '' THEN true
    ELSE code OPERATOR(pg_catalog.=) ANY {constraints} AND {is_target}
        AND (CASE WHEN code OPERATOR(pg_catalog.=) {not_null} THEN of_column ELSE of_constraint END)
            OPERATOR(pg_catalog.<>) ''
END)"""


def is_for_itself(error: BaseException) -> bool:
    """Whether an error may be about a value or a row that is refused whatever other rows the table has."""
    kind = kind_of(error)
    return kind is Kind.VALUE or (isinstance(error, psycopg.Error) and kind is not None and error.sqlstate in ALONE)


def may_be_a_rows(error: BaseException) -> bool:
    """Whether an error may be about the values of one row."""
    return isinstance(error, (NullKeyError, NullOrderError)) or kind_of(error) is not None


@dataclass(frozen=True)
class TargetNames:
    """
    The names by which errors may call a table: its own, those of its partitions, those of the hypertable's chunks.

    ``chunks`` are the schema of the chunks and the beginning of their names, or empty.
    """

    tables: Sequence[tuple[str, str]]
    chunks: tuple[str, str]

    def of_error(self, error: psycopg.Error) -> bool:
        """Whether the error names the table."""
        schema, name = error.diag.schema_name or "", error.diag.table_name or ""
        is_chunk = bool(self.chunks[1]) and schema == self.chunks[0] and name.startswith(self.chunks[1])
        return (schema, name) in self.tables or is_chunk

    def has(self, schema: sql.Composable, name: sql.Composable) -> sql.Composed:
        """The condition that these two texts name the table."""
        is_one = sql.SQL("{} OPERATOR(pg_catalog.=) {} AND {} OPERATOR(pg_catalog.=) {}")
        named = [is_one.format(schema, own_schema, name, own) for own_schema, own in self.tables]
        if self.chunks[1]:
            begins = sql.SQL("{} OPERATOR(pg_catalog.=) {} AND pg_catalog.starts_with({}, {})")
            named.append(begins.format(schema, self.chunks[0], name, self.chunks[1]))
        return sql.SQL("({})").format(sql.SQL(" OR ").join(named))


def names_of(connection: psycopg.Connection, table: TargetTable) -> TargetNames:
    """Ask for the names of the table."""

    def asked(question: str, *of: object) -> list[tuple[str, str]]:
        return search_path.execute_in_tx(connection, sql.SQL(question).format(*map(sql.Literal, of))).fetchall()

    partitions = asked(_PARTITIONS, table.oid) if table.kind == "p" else []
    chunks = asked(_CHUNKS, table.schema, table.name) if asked(_HAS_HYPERTABLES) else []
    return TargetNames([(table.schema, table.name), *partitions], chunks[0] if chunks else ("", ""))


_PARTITIONS = """
SELECT n.nspname::text, c.relname::text FROM pg_partition_tree({}) AS p
JOIN pg_class AS c ON c.oid = p.relid JOIN pg_namespace AS n ON n.oid = c.relnamespace
"""
# A table that is TimescaleDB's own, not one that a user has made under its name.
_HAS_HYPERTABLES = """
SELECT FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid
WHERE d.classid = 'pg_class'::regclass AND d.objid = to_regclass('_timescaledb_catalog.hypertable')
    AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'timescaledb'
"""
# By their names: if the refused rows were the first of a chunk, it has gone with them.
_CHUNKS = """
SELECT associated_schema_name::text, associated_table_prefix || '_' FROM _timescaledb_catalog.hypertable
WHERE schema_name = {} AND table_name = {}
"""


MOST_SECONDS = 300
"""All the while the transaction holds its locks, and what was tried stays in the table's file until it is vacuumed."""
_ONLY_TURNS_SECONDS = 86_400.0  # Rows that nothing has refused take as long as they need.


@dataclass
class SearchBound:
    """
    Since when bad rows are looked for, and for how long they may be; ``why`` says what Postgres has refused.

    A try that has begun is not cut short, so that a search may take longer by the time that writing the batch takes.
    """

    table: str
    why: str = ""
    most_seconds: float = field(default_factory=lambda: MOST_SECONDS)
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def after(cls, error: Exception | None, table: str, why: str = "") -> SearchBound:
        """For rows that were refused with ``error``; without one, they only take their turns."""
        return cls(table, why) if error else cls(table, why, _ONLY_TURNS_SECONDS)

    def left(self) -> float:
        """How many seconds are left."""
        return self.most_seconds - (time.monotonic() - self.began)

    def too_long(self) -> TargetError:
        """The error for a search that has lasted too long."""
        return bad_target(
            "SEARCH_TOO_LONG",
            f"The rows of the batch for {self.table} could not be written one by one in {self.most_seconds:g} "
            f"seconds.{self.why}",
            "Make the batches smaller (maxOffsetsPerTrigger, maxFilesPerTrigger). Or find the rows that Postgres "
            "refuses in the source or in the table, and repair them or filter them out: many at once often have one "
            "cause.",
        )


def of_one(row: BadRow | UnfitRow) -> str:
    """Why one of several bad rows cannot be written, as a sentence."""
    return f" One of them was refused with {row.code}: {row.message.removesuffix('.')}."


def not_encoded(row: UnfitRow) -> TargetError:
    """The error for a row that could not be encoded, and may not be put aside."""
    code = row.code
    return bad_target(
        code,
        row.message,
        "Repair the value in Spark, or filter the row out, before it is written. Or set deadLetters for this row as "
        "well: in the table's entry, or for the whole stream if the row's route is not in tables.",
    )


def none_fits(table: str, why: str = "") -> TargetError:
    """The error for a batch without a row that can be written; ``why`` is the reason for one of its rows."""
    return bad_target(
        "ALL_ROWS_REFUSED",
        f"No row of the batch can be written to {table}. So the cause is not in single rows, and none of them is "
        f"put aside as a dead letter.{why}",
        "Remove the cause, in the source or in the table, and start the query, or the batch job, again.",
    )


def too_many(table: str, most: int, why: str = "") -> TargetError:
    """The error for a batch with more bad rows than are allowed; ``why`` says of one of them why it is one."""
    return bad_target(
        "TOO_MANY_DEAD_LETTERS",
        f"More than {most} rows of the batch cannot be written to {table}, and maxDeadLetters allows no more.{why}",
        "So many bad rows at once often have one cause, in the source or in the table: remove it. Or raise "
        "maxDeadLetters, and repair the rows later (`pgonce dead-letters`).",
    )
