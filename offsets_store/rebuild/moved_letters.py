"""
Where are the dead letters of two tables that have changed places, and which table are their rows for?

Runs in the command ``pgonce swap``. Invariant: a letter in the ledger stays with its query and with the table that has
the other rows of its batch. Letters in a table of the user's own are left alone: a replay finds out that the name means
another table by now.
"""

from __future__ import annotations

from sqlalchemy import Connection, select, text, update

from ..ledger.tables import dead_letters
from .described_table import Table


def lock_letters(connection: Connection, living: Table, new: Table) -> None:
    """Wait until nobody repairs or replays a letter for these tables; before they are locked, as a replay does."""
    names = [living.qualified_name, new.qualified_name]
    of_both = select(dead_letters.c.dead_letter_id).where(dead_letters.c.target.in_(names))
    connection.execute(of_both.order_by(dead_letters.c.dead_letter_id).with_for_update()).all()


def exchange_letters(connection: Connection, living: Table, new: Table) -> None:
    """Let the letters of each table, whichever query they are from, name it as it is called now."""
    names = {"one": living.qualified_name, "other": new.qualified_name}
    quoted = {"quoted_one": living.identifier.as_string(None), "quoted_other": new.identifier.as_string(None)}
    connection.execute(_EXCHANGE, {**names, **quoted})


def follow_sink(connection: Connection, query_id: str, was: str, sink_name: str) -> None:
    """Let a query's letters have the name that its sink has now."""
    letters = update(dead_letters).where(dead_letters.c.query_id == query_id, dead_letters.c.sink_name == was)
    connection.execute(letters.values(sink_name=sink_name))


# A letter without a table (its route was unknown) has an empty destination.
_EXCHANGE = text("""
UPDATE pgonce.dead_letters AS l
SET target = t.name,
    destination = CASE WHEN l.destination ->> 'table' IN (t.was, t.quoted_was)
                  THEN jsonb_set(l.destination, '{table}', to_jsonb(t.quoted_name)) ELSE l.destination END
FROM (VALUES (CAST(:one AS text), CAST(:quoted_one AS text), CAST(:other AS text), CAST(:quoted_other AS text)),
             (:other, :quoted_other, :one, :quoted_one)) AS t (was, quoted_was, name, quoted_name)
WHERE l.target = t.was
""")
