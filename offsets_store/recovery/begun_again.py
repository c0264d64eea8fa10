"""
Whose rows has a new query read from the beginning again?

Runs in a replay of dead letters. Invariant: a writer that was forgotten, or whose place was taken by a query that
started over, is found, and so is one whose successor was. One that was retired, or whose successor has gone on where it
ended, is not: nobody has read its rows again.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text

from ..status.dead_letters import StoredLetter

Key = tuple[str, str]
"""A writer: the query's id, and its sink's name."""


def begun_again_in_tx(connection: Connection, letters: Sequence[StoredLetter]) -> dict[Key, str]:
    """The writers of these letters whose rows were to be read again, each with what has happened, in words."""
    keys = {(letter.query_id, letter.sink_name) for letter in letters}
    return {key: words for key in sorted(keys) if (words := _said(connection, key)) is not None}


def _said(connection: Connection, key: Key) -> str | None:
    found = connection.execute(_FATE, {"query_id": key[0], "sink_name": key[1]}).first()
    if found is None:
        return None
    query_id, kind, by, when = found
    at = f"{when:%Y-%m-%d %H:%M:%S %Z}"
    if kind == "forget":
        return f"query {query_id} was forgotten at {at} (pgonce forget), so that a new one reads everything again"
    return f"query {by} started over from query {query_id} at {at} (startOver=truncate), and reads everything again"


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
