"""
Write the rows of letters, and tell which letters must stay: those whose rows change nothing, or are refused.

Runs in a replay, in its transaction. Invariant: a letter goes only if its row was written, deleted what it was to
delete, or gave way to another letter of the same replay.

The rows are written together. Only if not all of them have an effect are they halved, in the order of their changes, so
that no row of the first half can be newer than one of the second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import psycopg

from pgonce.offsets_store.errors import TargetError
from pgonce.offsets_store.postgres.refused_rows import add_note, target_error
from pgonce.offsets_store.status.dead_letters import StoredLetter

from ..writing.rows import Rows
from .mended_rows import only

_MOST_NAMED = 20

_NO_EFFECT = {
    "passed_over": "a row of its key that is newer is in the table, or was deleted there (onlyNewer)",
    "not_found": "it deletes a row, and the table has none of its key",
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
    """The ``letters`` of one table in the order of their changes, and their ``rows`` in the same order."""

    letters: tuple[StoredLetter, ...]
    rows: Rows

    def halves(self) -> list[LetterRows]:
        """The older half and the newer one."""
        half = len(self.letters) // 2
        parts = range(half), range(half, len(self.letters))
        return [LetterRows(tuple(self.letters[n] for n in part), only(self.rows, part)) for part in parts]


@dataclass(frozen=True)
class Replay:
    """
    Writes rows of letters with ``write``, which returns what they are counted as.

    :param tolerates: whether a row that is refused keeps its letter, and does not end the replay. Then constraints that
        are deferred are checked at once.
    """

    connection: psycopg.Connection
    write: Callable[[Rows], Mapping[str, int] | None]
    tolerates: bool = False

    def write_in_tx(self, given: LetterRows) -> tuple[Counter[str] | None, list[Kept]]:
        """
        Write them, and return what their rows are counted as, and the letters that stay.

        :raises TargetError: where rows are refused, unless that is tolerated.
        :raises psycopg.Error: what Postgres says of them, with a note on the letters.
        """
        try:
            with self.connection.transaction() as tried:
                counts = self.write(given.rows)
                if self.tolerates:
                    self.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
                if not _is_clear(counts, len(given.letters)):
                    raise psycopg.Rollback(tried)
        except psycopg.OperationalError:
            # About no row: a lock, the disk, the connection.
            raise
        except (psycopg.Error, TargetError) as error:
            if not self.tolerates:
                if isinstance(error, psycopg.Error):
                    add_note(error, _note(given.letters))
                raise
            if len(given.letters) == 1:
                return None, [Kept(given.letters[0], _said(error), is_refused=True)]
        else:
            if _is_clear(counts, len(given.letters)):
                why = next((why for stage, why in _NO_EFFECT.items() if (counts or {}).get(stage)), None)
                counted = None if counts is None else Counter(counts)
                return counted, [Kept(letter, why) for letter in given.letters] if why else []
        (first, kept), (second, more) = map(self.write_in_tx, given.halves())
        if first is None or second is None:
            return first or second, kept + more
        # Not their sum, which would leave out what none has.
        first.update(second)
        return first, kept + more


def _is_clear(counts: Mapping[str, int] | None, letters: int) -> bool:
    """Whether each of the rows has had an effect, or all have had none for the same reason."""
    without = [number for stage in _NO_EFFECT if (number := (counts or {}).get(stage, 0))]
    return not without or without == [letters]


def _note(letters: Sequence[StoredLetter]) -> str:
    # Postgres knows rows by their place; this is their order.
    ids = ", ".join(str(letter.dead_letter_id) for letter in letters[:_MOST_NAMED])
    return f"The rows are those of the dead letters {ids}{', ...' if len(letters) > _MOST_NAMED else ''}, in this order"


def _said(error: psycopg.Error | TargetError) -> str:
    refused = error if isinstance(error, TargetError) else target_error(error)
    return f"[{refused.code}] {refused.what.replace('Postgres refused the batch', 'Postgres refuses the row')}"
