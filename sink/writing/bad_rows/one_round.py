"""
Write numbered rows in parts, once each, in one statement in PL/pgSQL; and say which of them Postgres refuses.

Runs in the commit. Invariant: a part is written in a subtransaction, whole or not at all. A row is refused after those
before it were written, and by an error that is about a row of the target; any other error ends the statement.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import psycopg
from psycopg import sql

from pgonce.offsets_store.postgres.search_path import LocalSettings

from ..by_key.one_by_one import AT, COUNTED, FIRST, LAST, NOT_READ, NUMBER, OUTCOME, VARIABLES
from ..by_key.unread_value import VALUE_NOT_READ, unread_error
from .about_a_row import (
    CHECK,
    EXCLUSION,
    NOT_NULL,
    TOO_LARGE,
    UNIQUE,
    BadRow,
    SearchBound,
    TargetNames,
    is_about_a_row,
    refused_as,
)
from .turns import PLACE, TURN, Turns
from .value_probe import ValueProbe

_counter = itertools.count()
_BAD = sql.Identifier("pgonce: bad")
"""The variable with the number of a row that was refused; no column of a user has its name."""
_VARIABLES = {"variables": VARIABLES, "first": FIRST, "last": LAST, "at": AT}
_TWICE = psycopg.errors.CardinalityViolation.sqlstate
_MOST_PENDING = 1_000
"""So many more rows than may be put aside wait for others at most: a table that lacks them would refuse each again."""
_FEW = 8
"""Rows that are tried again are tried with so many behind them, because they may need each other."""
# They keep Postgres from reading a whole table for each row, because it believes that the table is almost empty or on a
# slow disk. JSON has as many digits of a float as the last one says, and tombstones need all.
_SETTINGS = LocalSettings(seq_page_cost="1", random_page_cost="1", enable_hashjoin="off")
_WITH_ALL_DIGITS = LocalSettings(seq_page_cost="1", random_page_cost="1", enable_hashjoin="off", extra_float_digits="1")


@dataclass(frozen=True)
class Refused:
    """A row that was refused, by its turn and its number; if ``is_final``, by the type of a column."""

    turn: int
    number: int
    row: BadRow
    is_final: bool


@dataclass(frozen=True)
class Round:
    """
    What became of rows that were written: ``counts`` as :data:`COUNTED` names them, and those that were ``refused``.

    If it ``is_enough``, the last one of these ended the round, and other rows were not looked at.
    """

    counts: Sequence[int]
    refused: Sequence[Refused]
    is_enough: bool


@dataclass(frozen=True)
class Rounds:
    """
    Writes rows for ``names``, which is how errors name the table.

    :param most: how many rows may be refused; a round ends once more of them are, and no other row can mend these.
    :param deferred: the constraints that are checked after each part.
    :param until: an SQLSTATE; a row that is refused with it ends a round, and it need not be about a row otherwise.
    """

    connection: psycopg.Connection
    names: TargetNames
    bound: SearchBound
    most: int = 0
    deferred: Sequence[sql.Identifier] = ()
    until: str = ""
    _number: int = field(default_factory=lambda: next(_counter))

    def begin_in_tx(self, instead: Exception | None) -> None:
        """
        Create what is needed first.

        :param instead: what is raised where the role may not create temporary tables, or PL/pgSQL was dropped.
        """
        tables = {what: self.named(what) for what in ("hint", "refused", "round")}
        try:
            self.connection.execute(sql.SQL(_TABLES).format(**tables))
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedObject):
            if instead is None:
                raise
            raise instead from None

    def named(self, what: str) -> sql.Identifier:
        """The name of a temporary table of these rounds."""
        return sql.Identifier("pg_temp", f"pgonce_{self._number}_{what}")

    @property
    def hint(self) -> sql.Composable:
        """Draws a number of the sequence."""
        return sql.SQL("pg_catalog.nextval({})").format(self._sequence)

    def run_in_tx(
        self, turns: Turns, probe: ValueProbe | None, numbers: range, size: int, counts: Sequence[int]
    ) -> Round:
        """
        Write the rows with these numbers.

        :param probe: tells whether a value is refused by the target's types; without one, such an error is raised.
        :param size: the number of rows of the first part.
        :param counts: what was counted before.
        :raises TargetError: SEARCH_TOO_LONG; TRIGGER_CHANGED_ROWS, ROWS_NOT_WRITTEN.
        :raises psycopg.Error: what Postgres says that is not about a row.
        """
        statements = [probe.of_write, probe.of_delete, *probe.of_each] if probe else []
        is_append = turns.batch is None
        body = sql.SQL(_ROUND).format(
            **_VARIABLES,
            begin=numbers.start,
            end=numbers.stop - 1,
            size=size,
            least=_FEW if numbers.start > 1 else 1,
            pending=self.most + _MOST_PENDING,
            counts=sql.Literal(list(counts)),
            most=self.most,
            seconds=self.bound.left(),
            part=turns.part,
            sequence=self.named("hint_number_seq"),
            sequence_name=self._sequence,
            draws=turns.begun is None,
            checks=self._checks,
            is_about_a_row=is_about_a_row(self.names, self.until),
            no_value=sql.Literal([*TOO_LARGE, NOT_READ, _TWICE]),
            twice=_TWICE,
            has_no_probe=probe is None,
            statements=sql.Literal([one.as_string(self.connection) for one in statements]),
            is_delete=turns.is_delete(_BAD),
            bad=_BAD,
            refused=self.named("refused"),
            may_be_enough=not turns.may_be_superseded,
            hopeless=sql.Literal([NOT_NULL, CHECK, *((UNIQUE, EXCLUSION) if is_append else ())]),
            until=self.until,
            round=self.named("round"),
        )
        settings = _WITH_ALL_DIGITS if turns.own_set is not None else _SETTINGS
        try:
            settings.execute_in_tx(self.connection, sql.SQL("DO {}").format(body.as_string(self.connection)))
        except psycopg.Error as error:
            if error.sqlstate == OUTCOME and turns.outcome is not None:
                raise turns.outcome.error("a change") from None
            raise
        found = self.connection.execute(
            sql.SQL(_REFUSED).format(
                refused=self.named("refused"), turns=turns.table, number=NUMBER, turn=TURN, place=PLACE
            ),
            prepare=False,
        ).fetchall()
        refused = []
        for turn, number, place, code, message, detail, column, suspect, is_final in found:
            named = probe.suspects[suspect - 1].target if probe and suspect else column
            row = refused_as(place, VALUE_NOT_READ if code == NOT_READ else code, message, detail, named)
            refused.append(Refused(turn, number, row, is_final=is_final))
        done = sql.SQL("DELETE FROM {} RETURNING counts, is_enough, is_whole").format(self.named("round"))
        counted, is_enough, is_whole = self.connection.execute(done).fetchone() or (counts, False, False)
        if not is_enough and not is_whole:
            raise self.bound.too_long()
        return Round(counted, refused, is_enough)

    def raise_in_tx(self, turns: Turns, refused: Refused) -> NoReturn:
        """Let Postgres say again why it refuses a row, with all that it says of it."""
        if refused.row.code == VALUE_NOT_READ and turns.batch is not None:
            raise unread_error(turns.batch.target, refused.row.column_name or "")
        body = sql.SQL(_ONE).format(
            **_VARIABLES,
            number=refused.number,
            counts=sql.Literal([0] * len(COUNTED)),
            part=turns.part,
        )
        self.connection.execute(sql.SQL("DO {}").format(body.as_string(self.connection)), prepare=False)
        # A newer row of its key was written meanwhile.
        raise psycopg.errors.lookup(refused.row.code)(refused.row.message)

    @property
    def _sequence(self) -> str:
        return self.named("hint_number_seq").as_string(self.connection)

    @property
    def _checks(self) -> sql.Composable:
        """Checks what is deferred, and lets it be deferred again."""
        if not self.deferred:
            return sql.SQL("NULL")
        names = sql.SQL(", ").join(self.deferred)
        return sql.SQL("SET CONSTRAINTS {0} IMMEDIATE; SET CONSTRAINTS {0} DEFERRED").format(names)


_TABLES = """
CREATE TEMPORARY TABLE {hint} (number pg_catalog.int8 GENERATED ALWAYS AS IDENTITY) ON COMMIT DROP;
CREATE TEMPORARY TABLE {refused} (
    number pg_catalog.int8, code pg_catalog.text, message pg_catalog.text, detail pg_catalog.text,
    column_name pg_catalog.text, suspect pg_catalog.int4, is_final pg_catalog.bool
) ON COMMIT DROP;
CREATE TEMPORARY TABLE {round} (
    counts pg_catalog.int8[], is_enough pg_catalog.bool, is_whole pg_catalog.bool
) ON COMMIT DROP;
DO 'BEGIN END'
"""
_ONE = """
#variable_conflict use_column
DECLARE
    {first} pg_catalog.int8 := {number};
    {last} pg_catalog.int8 := {number};
    {at} pg_catalog.int8;
    counts pg_catalog.int8[] := {counts};
    {variables}
BEGIN
    {part};
END
"""
_REFUSED = """
WITH taken AS (DELETE FROM {refused} RETURNING *)
SELECT given.{turn}, given.{number}, given.{place}::pg_catalog.text, taken.code, taken.message, taken.detail,
    taken.column_name, taken.suspect, taken.is_final
FROM taken JOIN {turns} AS given ON given.{number} OPERATOR(pg_catalog.=) taken.number ORDER BY given.{turn}
"""
# Operators, functions and types are qualified, because the user's search_path is in force: triggers of the target run.
# The statement that writes is a part of it, so that it is planned once and not for each part.
_ROUND = """
#variable_conflict use_column
DECLARE
    {first} pg_catalog.int8 := {begin};
    {last} pg_catalog.int8;
    {at} pg_catalog.int8;
    total pg_catalog.int8 := {end};
    size pg_catalog.int8 := {size};
    since pg_catalog.int8 := {begin};
    fails_by pg_catalog.int8 := 0;
    behind pg_catalog.int8;
    {bad} pg_catalog.int8;
    hopeless pg_catalog.int8 := 0;
    pending pg_catalog.int8 := 0;
    fits pg_catalog.bool;
    is_final pg_catalog.bool;
    is_enough pg_catalog.bool := false;
    counts pg_catalog.int8[] := {counts};
    kept pg_catalog.int8[];
    code pg_catalog.text;
    message pg_catalog.text;
    detail pg_catalog.text;
    of_column pg_catalog.text;
    of_constraint pg_catalog.text;
    of_schema pg_catalog.text;
    of_table pg_catalog.text;
    of_type pg_catalog.text;
    other pg_catalog.text;
    why pg_catalog.text[];
    why_behind pg_catalog.text[];
    statements pg_catalog.text[] := {statements};
    suspect pg_catalog.int4;
    candidate pg_catalog.int4;
    last_suspect pg_catalog.int4 := 0;
    ends pg_catalog.timestamptz := pg_catalog.clock_timestamp()
        OPERATOR(pg_catalog.+) pg_catalog.make_interval(secs => {seconds});
    {variables}
BEGIN
WHILE {first} OPERATOR(pg_catalog.<=) total AND NOT is_enough
      AND pg_catalog.clock_timestamp() OPERATOR(pg_catalog.<=) ends LOOP
    -- Of rows that are refused together, one half is tried next.
    IF {first} OPERATOR(pg_catalog.<=) fails_by THEN
        size := LEAST(
            size, (fails_by OPERATOR(pg_catalog.-) {first} OPERATOR(pg_catalog.+) 2) OPERATOR(pg_catalog./) 2);
    END IF;
    {last} := LEAST({first} OPERATOR(pg_catalog.+) size OPERATOR(pg_catalog.-) 1, total);
    {at} := NULL;
    {bad} := NULL;
    kept := counts;
    BEGIN
        IF {draws} THEN
            PERFORM pg_catalog.setval({sequence_name}, {first}, false);
        END IF;
        {part};
        {checks};
        fits := true;
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
            of_column = COLUMN_NAME, of_constraint = CONSTRAINT_NAME, of_schema = SCHEMA_NAME, of_table = TABLE_NAME,
            of_type = PG_DATATYPE_NAME;
        IF {draws} THEN
            -- The last row is refused, or it was the last one before what is checked when all are written.
            SELECT CASE WHEN last_value OPERATOR(pg_catalog.<>) {last} THEN last_value END INTO {at} FROM {sequence};
        END IF;
        -- One statement does not update a row twice: a key comes again, and its next row begins the next part.
        -- Without a probe it is not known whose value is refused.
        IF NOT ({is_about_a_row} OR code OPERATOR(pg_catalog.=) {twice}
                AND COALESCE({at}, {last}) OPERATOR(pg_catalog.>) {first})
            OR {has_no_probe} AND of_table OPERATOR(pg_catalog.=) '' AND code OPERATOR(pg_catalog.<>) ALL ({no_value})
        THEN
            RAISE;
        END IF;
        fits := false;
        counts := kept;
        why := ARRAY[code, message, detail, of_column, of_table];
    END;
    IF fits THEN
        {first} := {last} OPERATOR(pg_catalog.+) 1;
        size := size OPERATOR(pg_catalog.*) 2;
        IF behind OPERATOR(pg_catalog.=) {first} THEN
            {bad} := behind;
            why := why_behind;
        END IF;
        behind := NULL;
    ELSIF {first} OPERATOR(pg_catalog.=) COALESCE({at}, {last}) THEN
        {bad} := {first};
        behind := NULL;
    ELSIF {at} IS NOT NULL THEN
        size := {at} OPERATOR(pg_catalog.-) {first};
        behind := CASE WHEN code OPERATOR(pg_catalog.<>) {twice} THEN {at} END;
        why_behind := why;
    ELSE
        fails_by := {last};
        behind := NULL;
    END IF;
    IF {bad} IS NOT NULL THEN
        is_final := why[5] OPERATOR(pg_catalog.=) '' AND why[1] OPERATOR(pg_catalog.<>) ALL ({no_value});
        suspect := NULL;
        IF is_final THEN
            -- Postgres does not say whose type or domain refuses a value: it may be a trigger's.
            other := '';
            BEGIN
                EXECUTE statements[CASE WHEN {is_delete} THEN 2 ELSE 1 END] USING {bad};
            EXCEPTION WHEN OTHERS THEN
                GET STACKED DIAGNOSTICS other = RETURNED_SQLSTATE;
            END;
            IF other OPERATOR(pg_catalog.<>) why[1] AND pg_catalog.left(other, 2) OPERATOR(pg_catalog.<>) '22' THEN
                RAISE EXCEPTION USING ERRCODE = why[1], MESSAGE = why[2], DETAIL = why[3];
            END IF;
            -- The column of the row before it comes first.
            FOR candidate IN SELECT n FROM pg_catalog.generate_series(1, pg_catalog.cardinality(statements)
                             OPERATOR(pg_catalog.-) 2) AS n ORDER BY n OPERATOR(pg_catalog.<>) last_suspect, n LOOP
                BEGIN
                    EXECUTE statements[candidate OPERATOR(pg_catalog.+) 2] USING {bad};
                EXCEPTION WHEN OTHERS THEN
                    GET STACKED DIAGNOSTICS other = RETURNED_SQLSTATE;
                    IF other OPERATOR(pg_catalog.=) why[1] THEN
                        suspect := candidate;
                        last_suspect := candidate;
                        EXIT;
                    END IF;
                END;
            END LOOP;
        END IF;
        INSERT INTO {refused} VALUES ({bad}, why[1], why[2], why[3], why[4], suspect, is_final);
        IF {may_be_enough} AND (is_final OR why[1] OPERATOR(pg_catalog.=) ANY ({hopeless})) THEN
            hopeless := hopeless OPERATOR(pg_catalog.+) 1;
        END IF;
        pending := pending OPERATOR(pg_catalog.+) 1;
        is_enough := hopeless OPERATOR(pg_catalog.>) {most} OR pending OPERATOR(pg_catalog.>) {pending}
            OR why[1] OPERATOR(pg_catalog.=) {until};
        {first} := {bad} OPERATOR(pg_catalog.+) 1;
        -- The next bad row may be as far away as this one was. Rows that are tried again may need each other.
        size := GREATEST({first} OPERATOR(pg_catalog.-) since OPERATOR(pg_catalog.+) 1, {least});
        since := {first};
        fails_by := 0;
    END IF;
END LOOP;
INSERT INTO {round} VALUES (counts, is_enough, {first} OPERATOR(pg_catalog.>) total);
END
"""
