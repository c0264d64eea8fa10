"""
Let the keys of batch jobs and the dead letters follow two tables that have changed places.

Runs in the command ``pgonce swap``. Invariant: a key goes with the table that has its rows. So a job that is run again
is skipped where its rows are, and published where they are not. A letter in the ledger stays with its query and with
the table that has the other rows of its batch. Letters in a table of the user's own are left alone: a replay finds out
that the name means another table by now.
"""

from __future__ import annotations

from uuid import uuid4

from sqlalchemy import BigInteger, Connection, bindparam, select, text, update
from sqlalchemy.dialects import postgresql

from ..ledger.tables import dead_letters
from .described_table import Table

_MOST_SHOWN = 5


def lock_job_keys(connection: Connection) -> None:
    """
    Wait until no batch job is in its commit, and keep new ones out; before the tables are locked, as a job does.

    A key that is claimed and not yet committed is invisible, and its rows may go into either table.
    """
    connection.execute(text("LOCK TABLE pgonce.batch_jobs IN SHARE ROW EXCLUSIVE MODE"))


def refused_keys(connection: Connection, living: Table, new: Table) -> list[str]:
    """
    The texts that say why the keys cannot go with these tables.

    The name of a sink that is not one of theirs was given by the user, and nothing says which table it means later on.
    """
    tables = (living, new)
    names, oids = [table.qualified_name for table in tables], [table.oid for table in tables]
    return [
        f"batch jobs with the sinkName {sink!r} have written to {table}, and their keys would not go with it: "
        f"{', '.join(map(repr, keys[:_MOST_SHOWN]))}{', ...' if len(keys) > _MOST_SHOWN else ''}"
        for sink, table, keys in connection.execute(_NAMED_BY_USERS, {"names": names, "oids": oids})
    ]


def keys_of_one_only(connection: Connection, living: Table, new: Table) -> int:
    """How many batch jobs were published into the living table, and not into the new one."""
    names = {"living": living.qualified_name, "new": new.qualified_name}
    return int(connection.execute(_OF_ONE_ONLY, names).scalar_one())


def exchange_keys(connection: Connection, living: Table, new: Table) -> None:
    """Let the keys of each table follow it to the name that it has now."""
    # By way of a third name, because both tables may have the same key.
    one, other, between = living.qualified_name, new.qualified_name, f"pgonce_{uuid4().hex}"
    for was, name in ((one, between), (other, one), (between, other)):
        connection.execute(_RENAME, {"was": was, "name": name})


# In one statement, because the skips refer to the jobs: the foreign key is checked when it ends.
_RENAME = text("""
WITH jobs AS (
    UPDATE pgonce.batch_jobs
    SET sink_name = CAST(:name AS text),
        targets = CASE WHEN targets ? CAST(:was AS text)
                  THEN targets - CAST(:was AS text)
                       || jsonb_build_object(CAST(:name AS text), targets -> CAST(:was AS text))
                  ELSE targets END
    WHERE sink_name = CAST(:was AS text)
)
UPDATE pgonce.batch_job_skips SET sink_name = CAST(:name AS text) WHERE sink_name = CAST(:was AS text)
""")

_NAMED_BY_USERS = text("""
SELECT j.sink_name, t.key, array_agg(j.batch_key ORDER BY j.committed_at DESC)
FROM pgonce.batch_jobs AS j, jsonb_each_text(j.targets) AS t
WHERE j.sink_name <> ALL (:names) AND (t.key = ANY (:names) OR t.value::bigint = ANY (:oids))
GROUP BY 1, 2 ORDER BY 1, 2
""").bindparams(
    bindparam("names", type_=postgresql.ARRAY(postgresql.TEXT)), bindparam("oids", type_=postgresql.ARRAY(BigInteger))
)

_OF_ONE_ONLY = text("""
SELECT count(*) FROM pgonce.batch_jobs AS j
WHERE j.sink_name = :living AND NOT EXISTS (
    SELECT FROM pgonce.batch_jobs AS o WHERE o.sink_name = :new AND o.batch_key = j.batch_key)
""")


def lock_letters(connection: Connection, living: Table, new: Table) -> None:
    """Wait until no session repairs or replays a letter for these tables; before they are locked, as a replay does."""
    names = [living.qualified_name, new.qualified_name]
    of_both = select(dead_letters.c.dead_letter_id).where(dead_letters.c.target.in_(names))
    connection.execute(of_both.order_by(dead_letters.c.dead_letter_id).with_for_update()).all()


def exchange_letters(connection: Connection, living: Table, new: Table) -> None:
    """Let the letters of each table, from every query, name it as it is called now."""
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
