"""
Take dead letters away: choose, lock and delete them, and note that.

Runs in the command ``pgonce``, and in a replay. Invariant: letters are deleted in the transaction
that notes it, for each sink that they came from; between the choice and the end of that transaction no other session
can take them, or change their rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, select, tuple_

from pgonce.offsets_store.errors import NotFoundError
from pgonce.offsets_store.ledger.session import reading, writing
from pgonce.offsets_store.ledger.tables import dead_letters, writers
from pgonce.offsets_store.status.dead_letters import Key, StoredLetter, as_letters, letters_of, one_of
from pgonce.offsets_store.status.read_stored import writers_of
from pgonce.recovery.by_hand import refuse_no_reason
from pgonce.recovery.fence import note


@dataclass(frozen=True)
class Choice:
    """Which dead letters are meant: those of these writers; with these ids or this code, if given."""

    writers: tuple[Key, ...]
    ids: frozenset[int] = frozenset()
    code: str | None = None


def chosen_letters(
    url: str, query: str, sink: str | None = None, *, ids: Collection[int] = (), code: str | None = None
) -> Choice:
    """
    What a person chooses by a query's id or name, and more.

    :raises OffsetsError: if no query or sink, or several, have that name.
    """
    with reading(url) as connection:
        keys = tuple((writer.query_id, writer.sink_name) for writer in writers_of(connection, query, sink))
    return Choice(keys, frozenset(ids), code)


def found_letters(url: str, choice: Choice) -> list[StoredLetter]:
    """
    The chosen letters as they are now, without their rows, in the order in which they were made.

    :raises: as :func:`letters_in_tx`.
    """
    with reading(url) as connection:
        return letters_in_tx(connection, choice, lock=False, with_rows=False)


def letters_in_tx(connection: Connection, choice: Choice, *, lock: bool, with_rows: bool = True) -> list[StoredLetter]:
    """
    The chosen letters, in the order in which they were made; locked until the transaction ends, if that is asked for.

    :raises OffsetsError: DEAD_LETTER_NOT_FOUND, for an id that is not one of theirs.
    """
    wanted = letters_of(choice.writers, ids=choice.ids, code=choice.code, with_rows=with_rows)
    letters = as_letters(connection, wanted.with_for_update() if lock else wanted)
    missing = choice.ids - {letter.dead_letter_id for letter in letters}
    if missing:
        raise NotFoundError.usual(
            "DEAD_LETTER_NOT_FOUND",
            f"There is no dead letter {', '.join(map(str, sorted(missing)))} of this query"
            + (f" with the code {choice.code}." if choice.code else "."),
            "It may have been replayed or discarded already: `pgonce dead-letters` lists those that are there, and "
            "pgonce.interventions has who did what with others, and why.",
        )
    return letters


def lock_writers_in_tx(connection: Connection, choice: Choice) -> dict[Key, int]:
    """Lock the writers' rows as a commit does, so that no batch of theirs is in the middle; their ids, by key."""
    wanted = select(writers.c.query_id, writers.c.sink_name, writers.c.writer_id).order_by(writers.c.writer_id)
    wanted = wanted.where(tuple_(writers.c.query_id, writers.c.sink_name).in_(choice.writers))
    rows = connection.execute(wanted.with_for_update()).all()
    return {(query_id, sink_name): writer_id for query_id, sink_name, writer_id in rows}


def remove_letters_in_tx(
    connection: Connection,
    letters: Sequence[StoredLetter],
    writer_ids: dict[Key, int],
    kind: str,
    reason: str | None,
) -> None:
    """Delete letters that are locked, and note for each sink which they were, and why."""
    ids = [letter.dead_letter_id for letter in letters]
    connection.execute(delete(dead_letters).where(one_of(dead_letters.c.dead_letter_id, ids)))
    for key, writer_id in writer_ids.items():
        own = [letter for letter in letters if (letter.query_id, letter.sink_name) == key]
        if own:
            details = {
                "dead_letters": len(own),
                "ids": [letter.dead_letter_id for letter in own],
                "targets": dict(Counter(letter.target for letter in own)),
            }
            note(connection, writer_id, kind, details=details, reason=reason)


_MOST_IDS_SHOWN = 20


def shown_ids(ids: Sequence[int]) -> str:
    """These ids, and how it goes on if they are many."""
    return ", ".join(map(str, ids[:_MOST_IDS_SHOWN])) + (", ..." if len(ids) > _MOST_IDS_SHOWN else "")


def discard_letters(choice: Choice, url: str = "", *, reason: str, dry_run: bool = False) -> list[StoredLetter]:
    """
    Give dead letters up: delete them, and keep the reason. Those that are, or would be, deleted, without their rows.

    :raises ConfigurationError: OPTION_MISSING.
    :raises OffsetsError: DEAD_LETTER_NOT_FOUND.
    :raises LedgerError: where the ledger cannot be written.
    """
    if dry_run:
        return found_letters(url, choice)
    refuse_no_reason(reason)
    with writing(url) as connection:
        writer_ids = lock_writers_in_tx(connection, choice)
        letters = letters_in_tx(connection, choice, lock=True, with_rows=False)
        if letters:
            kind = "discard-dead-letters"
            remove_letters_in_tx(connection, letters, writer_ids, kind, reason.strip())
    return letters
