"""
May a row that was put aside still be written, long after the rows that came with it?

Pure: runs in a replay. Invariant: a row goes into the table that it was for. One that is written by key never takes the
place of a newer one, and never brings back one that was deleted since it was put aside; where that cannot be known, the
replay is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from pgonce.offsets_store.errors import UNCHANGED, RecoveryError
from pgonce.offsets_store.status.dead_letters import StoredLetter

from ..options.destination import BY_KEY, Destination

# A delete of the same batch is remembered from a moment before the letter was made.
_MARGIN = timedelta(hours=1)
_MOST_SHOWN = 10

_BY_HAND = (
    "Look at the row of that key in the table. If the row that was put aside is still wanted, write it with SQL; then "
    "take the letter out with `pgonce dead-letters --discard`."
)
_DISCARD = "Otherwise take it out with `pgonce dead-letters --discard`."


def refuse_unsafe(destination: Destination, letters: Sequence[StoredLetter], now: datetime) -> None:
    """
    Refuse letters whose rows, if they were written now, could undo what was written since.

    :raises RecoveryError: REPLAY_UNSAFE.
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
    if existing.on_conflict == "ignore":
        raise _unsafe(
            letters,
            "onConflict=ignore keeps no trace of deletes, so that a row which somebody has deleted since would come "
            "back",
            _BY_HAND,
        )
    if not existing.only_newer:
        raise _unsafe(
            letters,
            "without onlyNewer nothing says whether its key has been written or deleted since, so that an old row "
            "could take the place of a newer one, or bring back one that was deleted",
            f"{_BY_HAND} With onlyNewer and orderBy, letters of later batches can be replayed.",
        )
    expired = [
        letter for letter in letters if letter.made_at + timedelta(days=existing.tombstone_days) - _MARGIN <= now
    ]
    if expired:
        raise _unsafe(
            expired,
            f"it was put aside {existing.tombstone_days} days ago or more, and for longer the ledger does not remember "
            "deletes (tombstoneDays), so that it could bring back a row that was deleted since",
            f"{_BY_HAND} A larger tombstoneDays gives more time for letters of later batches.",
        )


def refuse_begun_again(letters: Sequence[StoredLetter], begun_again: Mapping[tuple[str, str], str]) -> None:
    """
    Refuse letters of writers whose rows a new query reads from the beginning, with the one that was put aside.

    :param begun_again: what has happened to such writers, by query id and sink.
    :raises RecoveryError: REPLAY_UNSAFE.
    """
    for key, what in begun_again.items():
        own = [letter for letter in letters if (letter.query_id, letter.sink_name) == key]
        if own:
            raise _unsafe(
                own,
                f"{what}, this row too: it has written it or put it aside again, and a replay could write it twice",
                "Look for the row in the table, and in the new query's letters. If it is nowhere, write it with SQL. "
                "Then take this letter out with `pgonce dead-letters --discard`.",
            )


def refuse_other_table(letters: Sequence[StoredLetter], recorded: int | None, now: int | None) -> None:
    """
    Refuse letters whose table's name means another table than it did when they were put aside.

    :param recorded: the oid of the table that refused the rows, None where that is not known.
    :param now: the oid of the table that has its name; None if there is none, which is for the commit to say.
    :raises RecoveryError: REPLAY_UNSAFE.
    """
    if recorded is not None and now is not None and recorded != now:
        raise _unsafe(
            letters,
            f"the table that it was for had the oid {recorded}, and what is called {letters[0].target} now has the oid "
            f"{now}: it was exchanged (pgonce swap), renamed, or created again, and it may have this row already",
            "If the table has another name now, write that into `target` and `destination` of the letter; if the row "
            f"is wanted in the other one, its oid (`pgonce explain dead-letters`). {_DISCARD}",
        )


def refuse_other_target(letters: Sequence[StoredLetter], table: str, qualified_name: str) -> None:
    """
    Refuse letters whose ``destination`` names another table than ``target``, which is the one that people look at.

    :param table: the table that ``destination`` names, and ``qualified_name`` what that is called.
    :raises RecoveryError: REPLAY_UNSAFE.
    """
    if letters[0].target not in (table, qualified_name):
        raise _unsafe(
            letters,
            f"its destination names the table {table}, and no batch writes such a letter",
            "Find out who has changed it: streaming roles can write letters (`pgonce explain security`). If the row "
            f"is wanted, write one and the same table into `target` and `destination`. {_DISCARD}",
        )


def _unsafe(letters: Sequence[StoredLetter], why: str, remedy: str) -> RecoveryError:
    shown = ", ".join(str(letter.dead_letter_id) for letter in letters[:_MOST_SHOWN])
    shown += ", ..." if len(letters) > _MOST_SHOWN else ""
    return RecoveryError(
        "REPLAY_UNSAFE",
        f"Dead letter {shown} (for {letters[0].target}) cannot be replayed: {why}.",
        UNCHANGED,
        f"{remedy} With --id, only the letters that you name are replayed.",
    )
