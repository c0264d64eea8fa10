"""
Take dead letters away: choose, lock and delete them, and note that.

Runs in the command ``pgonce``, and in a replay. Invariant: letters are deleted in the transaction that notes it, for
each sink that they came from; between the choice and the end of that transaction no other session can take them, or
repair them. Letters of a writer are found if another query reads its rows again from the beginning: the writer was
forgotten, or a query that started over took its place or its successor's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import sqlalchemy.exc
from sqlalchemy import Connection, Table, delete, insert, select, text, tuple_

from ..errors import UNCHANGED, LedgerError, NotFoundError
from ..ledger.session import reading, writing
from ..ledger.tables import interventions, writers
from ..log_lines import scrub
from ..postgres.translate import driver_error
from ..status.dead_letters import StoredLetter, as_letters, letters_of, letters_table
from ..status.read_stored import writers_of
from ..status.stored import StoredWriter
from .by_hand import refuse_no_reason


@dataclass(frozen=True)
class Choice:
    """Which dead letters are meant: those of these writers, in this table; with these ids or this code, if given."""

    table: Table
    writers: tuple[StoredWriter, ...]
    ids: frozenset[int] = frozenset()
    code: str | None = None


def chosen_letters(
    url: str,
    query: str,
    sink: str | None = None,
    *,
    table: str | None = None,
    ids: Collection[int] = (),
    code: str | None = None,
) -> Choice:
    """
    What a person chooses by a query's id or name, and more.

    :raises OffsetsError: if no query or sink, or several, have that name, or the table is not one of dead letters.
    """
    found = letters_table(url, table)
    with reading(url) as connection:
        return Choice(found, tuple(writers_of(connection, query, sink)), frozenset(ids), code)


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
    :raises LedgerError: DEAD_LETTERS_NOT_PERMITTED, if the role may not read, or lock, them.
    """
    wanted = letters_of(choice.table, choice.writers, ids=choice.ids, code=choice.code, with_rows=with_rows)
    wanted = wanted.order_by(choice.table.c.dead_letter_id)
    with _saying_what_to_grant(choice.table):
        letters = as_letters(connection, wanted.with_for_update() if lock else wanted)
    missing = choice.ids - {letter.dead_letter_id for letter in letters}
    if missing:
        raise NotFoundError(
            "DEAD_LETTER_NOT_FOUND",
            f"{choice.table.fullname} has no dead letter {', '.join(map(str, sorted(missing)))} of this query"
            + (f" with the code {choice.code}." if choice.code else "."),
            UNCHANGED,
            "It may have been replayed or discarded already: `pgonce dead-letters` lists those that are there, and "
            "pgonce.interventions has what was done with others.",
        )
    return letters


def lock_writers_in_tx(connection: Connection, choice: Choice) -> dict[tuple[str, str], int]:
    """Lock the writers' rows as a commit does, so that no batch of theirs is in the middle; their ids, by key."""
    keys = [(writer.query_id, writer.sink_name) for writer in choice.writers]
    wanted = select(writers.c.query_id, writers.c.sink_name, writers.c.writer_id)
    wanted = wanted.where(tuple_(writers.c.query_id, writers.c.sink_name).in_(keys)).order_by(writers.c.writer_id)
    with _saying_what_to_grant(writers):
        rows = connection.execute(wanted.with_for_update()).all()
    return {(query_id, sink_name): writer_id for query_id, sink_name, writer_id in rows}


def remove_letters_in_tx(
    connection: Connection,
    table: Table,
    letters: Sequence[StoredLetter],
    writer_ids: dict[tuple[str, str], int],
    kind: str,
    reason: str | None,
) -> None:
    """Delete letters that are locked, and note for each sink which they were, and why."""
    with _saying_what_to_grant(table):
        ids = [letter.dead_letter_id for letter in letters]
        connection.execute(delete(table).where(table.c.dead_letter_id.in_(ids)))
    for key, writer_id in writer_ids.items():
        own = [letter for letter in letters if (letter.query_id, letter.sink_name) == key]
        if own:
            details = {
                "dead_letters": len(own),
                "ids": [letter.dead_letter_id for letter in own],
                "table": table.fullname,
                "targets": dict(Counter(letter.target for letter in own)),
            }
            with _saying_what_to_grant(interventions):
                connection.execute(
                    insert(interventions).values(writer_id=writer_id, kind=kind, reason=reason, details=details)
                )


def discard_letters(choice: Choice, url: str = "", *, reason: str, dry_run: bool = False) -> list[StoredLetter]:
    """
    Give dead letters up: delete them, and keep the reason. Those that are, or would be, deleted, without their rows.

    :raises ConfigurationError: NO_REASON.
    :raises OffsetsError: DEAD_LETTER_NOT_FOUND.
    :raises LedgerError: DEAD_LETTERS_NOT_PERMITTED, or where the ledger cannot be written.
    """
    if dry_run:
        return found_letters(url, choice)
    refuse_no_reason(reason)
    with writing(url, isolation_level="READ COMMITTED") as connection:
        writer_ids = lock_writers_in_tx(connection, choice)
        letters = letters_in_tx(connection, choice, lock=True, with_rows=False)
        if letters:
            kind = "discard-dead-letters"
            remove_letters_in_tx(connection, choice.table, letters, writer_ids, kind, reason.strip())
    return letters


@contextmanager
def _saying_what_to_grant(table: Table) -> Iterator[None]:
    try:
        yield
    except sqlalchemy.exc.DBAPIError as error:
        cause: Any = driver_error(error)
        if not isinstance(cause, psycopg.errors.InsufficientPrivilege):
            raise
        raise LedgerError(
            "DEAD_LETTERS_NOT_PERMITTED",
            f"The role lacks a permission on {table.fullname}, or on a table of the ledger: "
            f"{scrub(' '.join(str(cause).split()))}.",
            UNCHANGED,
            "A streaming role may only add dead letters, and read them. Give the command as the ledger's owner, or "
            "grant this role SELECT, UPDATE and DELETE on the table of the dead letters, SELECT and UPDATE on "
            "pgonce.writers, and SELECT and INSERT on pgonce.interventions.",
        ) from error


Key = tuple[str, str]
"""A writer: the query's id, and its sink's name."""


def begun_again_in_tx(connection: Connection, letters: Sequence[StoredLetter]) -> dict[Key, str]:
    """The writers of these letters whose rows were to be read again, each with the text for what has happened."""
    keys = {(letter.query_id, letter.sink_name) for letter in letters}
    return {key: words for key in sorted(keys) if (words := _said(connection, key)) is not None}


def _said(connection: Connection, key: Key) -> str | None:
    found = connection.execute(_FATE, {"query_id": key[0], "sink_name": key[1]}).first()
    if found is None:
        return None
    query_id, kind, by, when = found
    at = f"{when:%Y-%m-%d %H:%M:%S %Z}"
    if kind == "forget":
        return f"query {query_id} was forgotten at {at} (pgonce forget), so that a new query reads all rows again"
    return f"query {by} started over from query {query_id} at {at} (startOver=truncate), and reads all rows again"


# A sink that was renamed by a swap after it had taken another one's place is known by the name that it had before.
_FATE = text("""
WITH RECURSIVE line AS (
    SELECT w.writer_id, w.query_id, w.sink_name, w.replaced_by FROM pgonce.writers AS w
    WHERE w.query_id = :query_id AND w.sink_name = :sink_name
    UNION
    SELECT w.writer_id, w.query_id, w.sink_name, w.replaced_by
    FROM line AS l JOIN pgonce.writers AS w ON w.query_id = l.replaced_by
    WHERE w.sink_name = l.sink_name OR EXISTS (
        SELECT FROM pgonce.interventions AS i
        WHERE i.writer_id = w.writer_id AND i.kind = 'swap' AND i.details ->> 'was' = l.sink_name)
)
SELECT l.query_id, i.kind, NULL AS by, i.made_at FROM line AS l JOIN pgonce.interventions AS i USING (writer_id)
WHERE i.kind = 'forget'
UNION ALL
SELECT l.query_id, i.kind, n.query_id, i.made_at
FROM line AS l JOIN line AS n ON n.query_id = l.replaced_by JOIN pgonce.interventions AS i ON i.writer_id = n.writer_id
WHERE i.kind = 'start-over' AND i.details ->> 'replaced' = l.query_id
ORDER BY made_at
""")
