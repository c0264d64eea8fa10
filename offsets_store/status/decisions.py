"""
Read what people did by hand: which decision, who made it, when and why.

Runs where a user or a program asks. Invariant: it only reads, in a transaction that the caller owns. A writer is found
if another query reads its rows again from the beginning: the writer was forgotten, or a query that took its place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import sqlalchemy.exc
from sqlalchemy import Connection, text

from ..log_lines import one_line
from .dead_letters import Key, StoredLetter

_WORDS = {
    "accept": "accepted",
    "retire": "retired",
    "forget": "forgotten",
    "replay-dead-letters": "replayed",
    "discard-dead-letters": "discarded",
}


@dataclass(frozen=True)
class Decision:
    """
    One row of ``pgonce.interventions``.

    ``made_by`` is the database role. ``ids`` are the dead letters that it was about.
    """

    kind: str
    batch_id: int | None
    reason: str | None
    made_by: str
    made_at: datetime
    ids: tuple[int, ...]

    @property
    def says(self) -> str:
        """
        What was done, by whom, when and why, as the end of a sentence.

        >>> from datetime import timezone
        >>> Decision("retire", 3, "moved", "operator", datetime(2026, 11, 26, tzinfo=timezone.utc), ()).says
        'retired by role operator at 2026-11-26 00:00:00 UTC: moved'
        """
        why = f": {one_line(self.reason.strip().rstrip('.'))}" if self.reason and self.reason.strip() else ""
        who, when = one_line(self.made_by), f"{self.made_at:%Y-%m-%d %H:%M:%S %Z}"
        return f"{_WORDS[self.kind]} by role {who} at {when}{why}"


_READ = """
SELECT i.kind, i.batch_id, i.reason, i.made_by, i.made_at AT TIME ZONE 'UTC' AS at,
       CASE jsonb_typeof(i.details -> 'ids') WHEN 'array' THEN i.details -> 'ids' END AS ids
FROM pgonce.interventions AS i
"""
_OF_WRITER = text(
    f"{_READ} WHERE i.writer_id = :writer_id AND i.kind = ANY (CAST(:kinds AS text[])) ORDER BY i.intervention_id"
)
_OF_LETTERS = text(
    f"{_READ} WHERE i.kind = ANY (CAST(:kinds AS text[])) "
    "AND i.details -> 'ids' @> ANY (SELECT to_jsonb(n) FROM unnest(CAST(:ids AS bigint[])) AS n) "
    "ORDER BY i.intervention_id"
)


def decisions_on(connection: Connection, writer_id: int, kinds: Collection[str]) -> list[Decision]:
    """The decisions of these kinds about a writer, the oldest first; none if the role may not read them."""
    return _if_permitted(connection, _OF_WRITER, {"writer_id": writer_id, "kinds": list(kinds)})


def decisions_on_letters(connection: Connection, ids: Collection[int], kinds: Collection[str]) -> list[Decision]:
    """The decisions of these kinds about dead letters, the oldest first; none if the role may not read them."""
    return _if_permitted(connection, _OF_LETTERS, {"ids": sorted(ids), "kinds": list(kinds)})


def _if_permitted(connection: Connection, statement: Any, asked: dict[str, Any]) -> list[Decision]:
    # It completes an error; the transaction has to stay usable.
    try:
        with connection.begin_nested():
            return [_decision(row) for row in connection.execute(statement, asked)]
    except sqlalchemy.exc.DBAPIError:
        return []


def _decision(row: Any) -> Decision:
    ids = tuple(one for one in row.ids or () if isinstance(one, int))
    at = row.at.replace(tzinfo=timezone.utc)
    return Decision(row.kind, row.batch_id, row.reason, row.made_by, at, ids)


def begun_again_in_tx(connection: Connection, letters: Sequence[StoredLetter]) -> dict[Key, str]:
    """The writers of these letters whose rows were to be read again, each with the text for what has happened."""
    found = {}
    for key in sorted({(letter.query_id, letter.sink_name) for letter in letters}):
        fate = connection.execute(_FATE, {"query_id": key[0], "sink_name": key[1]}).first()
        if fate is not None:
            found[key] = (
                f"query {fate.query_id} was forgotten at {fate.made_at:%Y-%m-%d %H:%M:%S %Z} (pgonce forget), so that "
                "a new query reads all rows again"
            )
    return found


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
