"""
Decide whether a row that was put aside may still be written, and whether its letter may go.

Runs in a replay, in its transaction. Invariant: a row goes into the table that it was for. One that is written by key
never takes the place of a newer one, or of one with the same ``orderBy``, and never brings back one that was deleted
since it was put aside; where that cannot be known, the replay is refused. A letter goes only if its row was written,
deleted what it was to delete, or was replaced by another letter of the same replay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg
from sqlalchemy import Connection, text

from pgonce.dead_letters.chosen_letters import shown_ids
from pgonce.offsets_store.errors import UNCHANGED, RecoveryError, TargetError
from pgonce.offsets_store.postgres.refused_rows import target_error
from pgonce.offsets_store.status.dead_letters import StoredLetter
from pgonce.sink.options.definitions import BY_KEY
from pgonce.sink.options.destination import Destination
from pgonce.sink.writing.by_key.apply import MOVED
from pgonce.sink.writing.rows import Rows

from .mended_rows import only

# A delete of the same batch is remembered from a moment before the letter was made.
_MARGIN = timedelta(hours=1)

_BY_HAND = (
    "Look at the row of that key in the table. If the row that was put aside is still wanted, write it with SQL; then "
    "take the letter out with `pgonce dead-letters --discard`."
)
_DISCARD = "Otherwise take it out with `pgonce dead-letters --discard`."


def refuse_unsafe(destination: Destination, letters: Sequence[StoredLetter], now: datetime) -> None:
    """
    Refuse letters whose rows, if they were written now, could undo what was written since.

    :raises RecoveryError: REPLAY_IMPOSSIBLE.
    """
    existing = destination.existing
    if destination.mode == "complete":
        raise _unsafe(
            letters,
            f"every batch of mode complete replaces all rows of {destination.table}, and so would a replay",
            "The query's next batch computes the row again. Take the letter out with `pgonce dead-letters --discard`.",
        )
    if destination.mode not in BY_KEY:
        return
    if existing.stored_stays:
        raise _unsafe(
            letters,
            f"onConflict={existing.on_conflict} does not remember deletes, so the replay could bring back a row that "
            "was deleted since",
            _BY_HAND,
        )
    if not existing.only_newer:
        raise _unsafe(
            letters,
            "without onlyNewer it is unknown whether its key has been written or deleted since, so the replay could "
            "replace a newer row, or bring back a deleted one",
            f"{_BY_HAND} With onlyNewer and orderBy, letters of later batches can be replayed.",
        )
    expired = [
        letter for letter in letters if letter.made_at + timedelta(days=existing.tombstone_days) - _MARGIN <= now
    ]
    if expired:
        raise _unsafe(
            expired,
            f"it was put aside {existing.tombstone_days} days ago or more, and the ledger remembers deletes only "
            "for so long (tombstoneDays), so the replay could bring back a row that was deleted since",
            f"{_BY_HAND} A larger tombstoneDays gives more time for letters of later batches.",
        )


def refuse_begun_again_in_tx(connection: Connection, letters: Sequence[StoredLetter]) -> None:
    """
    Refuse letters of writers whose rows a new query reads from the beginning, with the one that was put aside.

    That is so if the writer was forgotten, or a query that took its place.

    :raises RecoveryError: REPLAY_IMPOSSIBLE.
    """
    for key in sorted({(letter.query_id, letter.sink_name) for letter in letters}):
        fate = connection.execute(_FATE, {"query_id": key[0], "sink_name": key[1]}).first()
        if fate is not None:
            raise _unsafe(
                [letter for letter in letters if (letter.query_id, letter.sink_name) == key],
                f"query {fate.query_id} was forgotten at {fate.made_at:%Y-%m-%d %H:%M:%S %Z} (pgonce forget), so that "
                "a new query reads all rows again, including this row: the new query has written it or put it aside "
                "again, so a replay could write it twice",
                "Look for the row in the table, and in the new query's letters. If it is nowhere, write it with SQL. "
                "Then take this letter out with `pgonce dead-letters --discard`.",
            )


_FATE = text("""
WITH RECURSIVE line AS (
    SELECT w.writer_id, w.query_id, w.sink_name, w.replaced_by FROM pgonce.writers AS w
    WHERE w.query_id = :query_id AND w.sink_name = :sink_name
    UNION
    SELECT w.writer_id, w.query_id, w.sink_name, w.replaced_by
    FROM line AS l JOIN pgonce.writers AS w ON w.query_id = l.replaced_by
    WHERE w.sink_name = l.sink_name
)
SELECT l.query_id, i.made_at FROM line AS l JOIN pgonce.interventions AS i USING (writer_id)
WHERE i.kind = 'forget' ORDER BY i.made_at
""")


def refuse_other_table(letters: Sequence[StoredLetter], recorded: int | None, now: int | None) -> None:
    """
    Refuse letters whose table's name means another table than it did when they were put aside.

    :param recorded: the oid of the table that refused the rows, None if that is not known.
    :param now: the oid of the table that has its name; None if there is none; then the commit says so.
    :raises RecoveryError: REPLAY_IMPOSSIBLE.
    """
    if recorded is not None and now is not None and recorded != now:
        raise _unsafe(
            letters,
            f"{letters[0].target} now is another table (oid {now}) than the one that refused the row (oid "
            f"{recorded}): the table was exchanged, renamed, or created again, and the other one may "
            "have this row already",
            "If the old table has another name now, write that name into `target` and `destination` of the letter. "
            "If the row is to go into the table that has the name now, write its oid into the letter (page "
            f"`dead-letters` of the documentation). {_DISCARD}",
        )


def refuse_other_target(letters: Sequence[StoredLetter], table: str, qualified_name: str) -> None:
    """
    Refuse letters whose ``destination`` names another table than ``target``, which is the one that people look at.

    :param table: the table that ``destination`` names, and ``qualified_name`` what that is called.
    :raises RecoveryError: REPLAY_IMPOSSIBLE.
    """
    if letters[0].target not in (table, qualified_name):
        raise _unsafe(
            letters,
            f"its destination names another table, {table}. No batch writes such a letter, so it was changed",
            "Find out who has changed it: streaming roles can write letters (page `security` of the documentation). "
            f"If the row is wanted, write the same table into `target` and `destination`. {_DISCARD}",
        )


def _unsafe(letters: Sequence[StoredLetter], why: str, remedy: str) -> RecoveryError:
    shown = shown_ids([letter.dead_letter_id for letter in letters])
    return RecoveryError(
        "REPLAY_IMPOSSIBLE",
        f"Dead letter {shown} (for {letters[0].target}) cannot be replayed: {why}.",
        UNCHANGED,
        f"{remedy} With --id, only the letters that you name are replayed.",
    )


_NO_EFFECT = {
    "passed_over": "the table has a row with its key that is newer or has the same orderBy, or such a delete is "
    "remembered (onlyNewer); with keepWhere, this row may have a value that the newer one did not bring again",
    "not_found": "it deletes a row, and the table has no row with its key",
    "ignored": "it deletes a row, and deletes=ignore is set",
}
"""Why a row changes nothing, for each way in which a batch counts it."""


@dataclass(frozen=True)
class Kept:
    """A letter that stays, and why; ``is_refused`` tells a row that is refused from one that changes nothing."""

    letter: StoredLetter
    why: str
    is_refused: bool = False


@dataclass(frozen=True)
class LetterRows:
    """
    The ``letters`` of one table in the order of their changes, and their ``rows`` in the same order.

    Letters whose ``ranks`` are equal have the same ``orderBy``.
    """

    letters: tuple[StoredLetter, ...]
    ranks: tuple[int, ...]
    rows: Rows

    def halves(self) -> list[LetterRows]:
        """
        The older half and the newer one, which is written later.

        Of two letters with one key and order the later one counts, and a row gives way to a stored one of its order. So
        letters of one order stay together. If all have the same order, the later half is written first.
        """
        middle = len(self.letters) // 2
        borders = [n for n in range(1, len(self.ranks)) if self.ranks[n - 1] != self.ranks[n]]
        cut = min(borders, key=lambda border: abs(border - middle), default=middle)
        parts = [range(cut), range(cut, len(self.letters))]
        if not borders:
            parts.reverse()
        return [
            LetterRows(tuple(self.letters[n] for n in part), self.ranks[part.start : part.stop], only(self.rows, part))
            for part in parts
        ]


def write_letters_in_tx(
    connection: psycopg.Connection,
    write: Callable[[Rows], Mapping[str, int] | None],
    given: LetterRows,
    *,
    checks: bool,
) -> tuple[Counter[str] | None, list[Kept]]:
    """
    Write the rows of letters that are not refused; what they are counted as, and the letters that stay.

    :param write: writes rows, and returns what they are counted as.
    :param checks: whether constraints that are deferred are checked at once.
    :raises psycopg.OperationalError: what Postgres says, if it is about no row.
    """
    try:
        with connection.transaction() as tried:
            counts = write(given.rows)
            if checks:
                connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            if not _is_clear(counts, len(given.letters)):
                raise psycopg.Rollback(tried)
    except psycopg.OperationalError:
        # About no row: a lock, the disk, the connection.
        raise
    except (psycopg.Error, TargetError) as error:
        if len(given.letters) == 1:
            refused = error if isinstance(error, TargetError) else target_error(error, "the row")
            return None, [Kept(given.letters[0], f"[{refused.code}] {refused.what}", is_refused=True)]
    else:
        if _is_clear(counts, len(given.letters)):
            why = next((why for stage, why in _NO_EFFECT.items() if (counts or {}).get(stage)), None)
            if counts and counts.get(MOVED) and (counts["written"] or counts["deleted"]):
                why = None
            counted = None if counts is None else Counter(counts)
            return counted, [Kept(letter, why) for letter in given.letters] if why else []
    (first, kept), (second, more) = (
        write_letters_in_tx(connection, write, half, checks=checks) for half in given.halves()
    )
    if first is None or second is None:
        return first or second, kept + more
    # Not their sum: Counter's + leaves out outcomes that no row has.
    first.update(second)
    return first, kept + more


def _is_clear(counts: Mapping[str, int] | None, letters: int) -> bool:
    """Whether each of the rows has had an effect, or all have had none for the same reason."""
    without = [number for stage in _NO_EFFECT if (number := (counts or {}).get(stage, 0))]
    if counts and counts.get(MOVED):
        # One row of two counts may have had no effect.
        return not without or letters == 1
    return not without or without == [letters]
