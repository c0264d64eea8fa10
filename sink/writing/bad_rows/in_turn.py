"""
Write the rows of a batch in their turn, in parts, where Postgres refuses to take all of them at once.

Runs in the commit, after the refused statement was rolled back. Invariants: a row is written after those before it, or
is refused while these are there. In the end the table, as it stands then, refuses each row that is not written, unless
a later change of its key was written. An error that is for no row's own sake ends the batch.

The rows are numbered in the order of ``orderBy``, or else in the order in which they came. A part of them is written in
a subtransaction, in PL/pgSQL, so that no try takes a round trip. If Postgres refuses it while it writes a row, the
number of that row is known: the rows before it are written, and the row itself was refused in its turn. If Postgres
refuses the part when all of it is written (a foreign key, a deferred constraint), the part is halved. Rows that were
refused are tried again after all others, until none of them fits: a parent may come after its child, and a later change
may make room for an earlier one (ADR 26).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from psycopg import sql

from ..by_key.deciding_changes import wanted_changes
from ..by_key.one_by_one import COUNTED, NUMBER
from ..by_key.statements import insert_in_turn
from ..rows import GatheredRows
from ..table.fit import qualified
from ..written import Counts, Written
from .about_a_row import BadRow, of_one, too_many
from .one_round import Refused, Rounds
from .turns import BETWEEN, Turns, lacking_rows, numbered_in_tx, turns_in_tx
from .value_probe import ValueProbe, is_cast, made_in_tx

_FIRST_PART = 1_000
"""Rows of the first part; a part that fits is followed by one of twice as many rows."""
_NOTHING = [0] * len(COUNTED)
_AT = sql.SQL("{} OPERATOR(pg_catalog.=) $1").format(NUMBER)


@dataclass
class InTurn:
    """Writes the rows of a batch for one table in their turn; at most ``rounds.most`` may be refused."""

    written: Written
    rounds: Rounds
    refused: list[BadRow] = field(default_factory=list)

    def write_in_tx(self, gathered: GatheredRows, instead: Exception | None = None) -> Counts:
        """
        Write what the table takes, and return what became of it; afterwards ``refused`` are the other rows.

        :param instead: what is raised where the role may not create temporary tables, or PL/pgSQL was dropped.
        :raises TargetError: TOO_MANY_DEAD_LETTERS, SEARCH_TOO_LONG; and if the rows cannot be written by key.
        :raises psycopg.Error: what Postgres says that is not about a row.
        """
        self.rounds.begin_in_tx(instead)
        self.refused, complete = lacking_rows(self.rounds.connection, gathered, self.written)
        rows = self._that_can_be_ordered_in_tx(complete)
        self._refuse_too_many()
        if rows is None:
            return None
        turns = turns_in_tx(self.rounds.connection, rows, self.written, self.rounds.named("turns"), self.rounds.hint)
        probe = made_in_tx(self.rounds.connection, self.written, self.rounds.named("probe"), turns.table, _AT)
        counts, refused = self._written_in_rounds(turns, probe)
        self.refused += [one.row for one in refused]
        self._refuse_too_many()
        # A ctid as a text, such as (9,10): by its page and its item.
        self.refused.sort(key=lambda row: tuple(map(int, row.place.strip("()").split(","))))
        return counts

    def write_all_in_tx(self, gathered: GatheredRows, instead: Exception | None) -> Counts:
        """
        Write all rows, and return what became of them; ``instead`` as above.

        :raises psycopg.Error: also what Postgres says of a row that it refuses in its turn.
        """
        self.rounds.begin_in_tx(instead)
        turns = turns_in_tx(
            self.rounds.connection, gathered, self.written, self.rounds.named("turns"), self.rounds.hint
        )
        counts, refused = self._written_in_rounds(turns, None)
        if refused:
            # If it was enough, the last one is the reason; else each is refused by what is written.
            self.rounds.raise_in_tx(turns, refused[-1])
        return counts

    def _written_in_rounds(self, turns: Turns, probe: ValueProbe | None) -> tuple[Counts, list[Refused]]:
        """Write the rows, and those that were refused again, until none of these fits; also return these."""
        begin, end, size, superseded = 1, turns.count, _FIRST_PART, 0
        counts: Sequence[int] = _NOTHING
        lost: set[int] = set()
        bad: list[Refused] = []
        while begin <= end:
            done = self.rounds.run_in_tx(turns, probe, range(begin, end + 1), size, counts)
            counts, refused = done.counts, done.refused
            if done.is_enough or len(refused) == end - begin + 1:
                # If nothing was written, the table refuses each of them as it stands.
                bad += refused
                break
            unwritten = lost.union(one.turn for one in refused)
            followed = turns.followed([one.turn for one in refused], unwritten) if refused else {}
            again = []
            for one in refused:
                if followed.get(one.turn):
                    superseded += 1
                elif one.is_final or one.turn in followed:
                    bad.append(one)
                else:
                    again.append(one.turn)
            if len(bad) > self.rounds.most:
                break
            lost = unwritten.difference(again)
            turns.again_in_tx(again, end, backwards=begin == 1)
            begin, end, size = end + 1, end + len(again), len(again)
        return turns.counts(counts, superseded), bad

    def _that_can_be_ordered_in_tx(self, rows: GatheredRows) -> GatheredRows | None:
        """Those of the rows whose keys, and what they are ordered by, can be cast; None if enough are not."""
        upsert = self.written.upsert
        compared = (*upsert.keys, upsert.order_by) if upsert else ()
        cast = [column for column in compared if column is not None and is_cast(column)]
        if not cast:
            return rows
        table, into = self.rounds.named("rows"), self.rounds.named("cast")
        types = {c.column_name: qualified(c.base_type, c.full_type) for c in self.written.table.columns}
        columns = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(column.target), sql.SQL(types[column.target])) for column in cast
        )
        self.rounds.connection.execute(sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DROP").format(into, columns))
        # A delete that is left out needs no key.
        count = numbered_in_tx(self.rounds.connection, wanted_changes(self.written.changes, rows), table)
        insert = insert_in_turn(GatheredRows(table, BETWEEN, count), NUMBER, self.rounds.hint, into, cast, None)
        probe = ValueProbe(into, self.written, table, _AT, cast)
        turns = Turns(self.rounds.connection, table, count, insert)
        done = self.rounds.run_in_tx(turns, probe, range(1, count + 1), _FIRST_PART, _NOTHING)
        refused = done.refused
        if not refused:
            return rows
        self.refused += [one.row for one in refused]
        if done.is_enough:
            return None
        bad = sql.Literal([one.row.place for one in refused])
        return rows.only(sql.SQL("ctid OPERATOR(pg_catalog.<>) ALL ({}::pg_catalog.tid[])").format(bad))

    def _refuse_too_many(self) -> None:
        if len(self.refused) > self.rounds.most:
            raise too_many(self.written.table.qualified_name, self.rounds.most, of_one(self.refused[0]))
