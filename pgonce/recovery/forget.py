"""
Forget a query: take it out of the way of one that loads its table again, and empty its tables if that is wanted.

Runs in the command ``pgonce forget``. Invariant: no record of a batch is deleted; the ledger keeps who said it, and
why. Tables are emptied in the transaction that forgets their query, and only if no other query or batch job has rows in
them; otherwise no row is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy import Connection, Row, func, select, text

from pgonce.offsets_store.checkpoint.writer import CheckpointWriter
from pgonce.offsets_store.errors import CheckpointError, RecoveryError
from pgonce.offsets_store.ledger.restored import is_at_home
from pgonce.offsets_store.ledger.session import reading
from pgonce.offsets_store.ledger.tables import batch_jobs
from pgonce.offsets_store.ledger.writers import COUNTS_AS_FEEDER, feeds, writers_in_tx
from pgonce.offsets_store.postgres.bounds import enter_in_tx
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.postgres.text import QUALIFIED_NAME
from pgonce.offsets_store.status.stored import last_to_publish
from pgonce.offsets_store.verdict.facts import Writer

from .by_hand import counts_as_feeder, put_out_of_the_way_in_tx, refuse_gone, refuse_no_reason
from .fence import QUIET_SECONDS, StoppedQuery, holding, refuse_running
from .read_stopped_query import named_sinks, own_files, read_checkpoint
from .stopped_query import CheckpointFacts, SinkFacts


@dataclass(frozen=True)
class Forgetting:
    """What is forgotten, or would be; ``emptied`` are the tables that are emptied with it."""

    query_id: str
    query_name: str | None
    sinks: tuple[SinkFacts, ...]
    emptied: tuple[str, ...]


def forget_query(
    query: str,
    url: str = "",
    *,
    reason: str,
    sink: str | None = None,
    truncate: bool = False,
    dry_run: bool = False,
    quiet_seconds: float = QUIET_SECONDS,
    wait_seconds: float = 0,
) -> Forgetting:
    """
    Take a query (its id or name) out of the way of new ones: with all its living sinks, or with ``sink`` alone.

    A sink that was retired is forgotten if it is named, or if the query has no living one: its rows were meant to stay.

    :param truncate: whether to empty the tables of these sinks, and forget the deletes that are remembered of them.
    :raises ConfigurationError: OPTION_MISSING.
    :raises RecoveryError: QUERY_RUNNING; WRITER_GONE, where all of it is gone already; NOT_EMPTIED.
    :raises OffsetsError: if no query, or several, have that name, or it has no such sink.
    """
    refuse_no_reason(reason)
    with reading(url) as connection:
        found, sinks = named_sinks(connection, query, sink)
        living = tuple(known for known in sinks if known.is_living)
        chosen = living or tuple(known for known in sinks if counts_as_feeder(connection, known))
        if not chosen:
            refuse_gone(sinks[0])
        emptied = {table.name for table in _to_empty(connection, chosen)} if truncate else ()
    if not dry_run:
        # What was retired publishes nothing, even if its query runs.
        if living:
            query_id = found[0].query_id
            checkpoint = _checkpoint(last_to_publish(found).checkpoint_location, query_id)
            refuse_running(StoppedQuery(url, query_id, living, quiet_seconds, wait_seconds, checkpoint))
        with holding(url, chosen) as connection:
            details = _empty_in_tx(connection, chosen) if truncate else None
            put_out_of_the_way_in_tx(connection, chosen, "forget", reason=reason, details=details)
    return Forgetting(found[0].query_id, found[0].query_name, chosen, tuple(sorted(emptied)))


def _empty_in_tx(connection: Connection, sinks: Sequence[SinkFacts]) -> dict[str, Any]:
    """
    Empty the tables of the sinks, whose rows are locked, forget the deletes from them, and return what to note.

    :raises RecoveryError: NOT_EMPTIED.
    """
    found = _to_empty(connection, sinks)
    driver = driver_connection(connection)
    # Not DELETE, which would delete or change rows of other tables by foreign keys.
    names = ", ".join(sorted({table.in_sql for table in found}))
    # A trigger may look for names along the search_path of the user.
    try:
        driver.execute(f"SET LOCAL search_path TO DEFAULT; TRUNCATE {names}")
    except _REFUSES_TO_EMPTY as error:
        raise _not_emptied([f"Postgres refuses to do it ({error.diag.message_primary})"]) from error
    enter_in_tx(driver)
    connection.execute(_FORGET_DELETES, {"oids": [table.oid for table in found]})
    # A first batch, or a batch job, whose COMMIT the lock has waited for is known by now.
    _to_empty(connection, sinks)
    return {"emptied": sorted({table.name for table in found})}


_REFUSES_TO_EMPTY = (
    # A foreign key refers to the table, and that one's rows stay.
    psycopg.errors.FeatureNotSupported,
    psycopg.errors.InsufficientPrivilege,
    # A trigger.
    psycopg.errors.RaiseException,
)


def _to_empty(connection: Connection, sinks: Sequence[SinkFacts]) -> Sequence[Row[Any]]:
    """
    The tables that the sinks have written to.

    :raises RecoveryError: NOT_EMPTIED, if rows of others would go too, or if it is not known which tables are meant.
    """
    # By oids of another database, the tables and their other feeders would be others.
    if not is_at_home(driver_connection(connection)):
        raise _not_emptied(["the ledger was restored from a dump: run `pgonce init` first"])
    found = connection.execute(_WRITTEN, {"ids": [sink.writer_id for sink in sinks]}).all()
    known = {table.sink_name for table in found}
    reasons = [f"the tables of sink {sink.sink_name} are not recorded" for sink in sinks if sink.sink_name not in known]
    reasons += [f"{table.was} was dropped, or is another table now" for table in found if table.name is None]
    # The rows may have been copied into the table that has the name.
    reasons += [f"{table.was} is another table now, and the query's is called {table.name}" for table in found
                if table.name is not None and table.is_taken]  # fmt: skip
    for sink in sinks:
        reasons += [
            f"query {one.query_id} has rows there too, through sink {one.sink_name!r}"
            for one in _others(connection, sink, sinks)
        ]
        of_jobs = select(func.count()).select_from(batch_jobs).where(feeds(_fed(sink), feeder="pgonce.batch_jobs"))
        if jobs := connection.execute(of_jobs).scalar_one():
            reasons.append(f"batch jobs have written there too ({jobs} batchKeys)")
    shared = connection.execute(_SHARED, {"oids": [table.oid for table in found]}).scalars()
    reasons += [f"deletes are remembered together with those from all partitions of {name}" for name in shared]
    if reasons:
        raise _not_emptied(reasons)
    return found


def _not_emptied(reasons: Sequence[str]) -> RecoveryError:
    return RecoveryError.usual(
        "NOT_EMPTIED",
        f"The tables are not emptied, and the query is not forgotten: {'; '.join(dict.fromkeys(reasons))}.",
        "A role that may TRUNCATE the tables has to run this. If rows of others may go, forget these queries first, or "
        "delete the records of the jobs. Or leave --truncate out, remove the rows by SQL, and forget the deletes that "
        "onlyNewer remembers of them (page `change-data` of the documentation, Other keys, or another order).",
    )


# Tables that inherit from one of them keep their rows, which another query may have written.
_WRITTEN = text(f"""
WITH named AS (
    SELECT {QUALIFIED_NAME} AS name, c.oid FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
)
SELECT w.sink_name, t.key AS was, c.oid::bigint AS oid, {QUALIFIED_NAME} AS name,
       concat(CASE c.relkind WHEN 'r' THEN 'ONLY ' END, quote_ident(n.nspname), '.', quote_ident(c.relname)) AS in_sql,
       EXISTS (SELECT FROM named WHERE named.name = t.key AND named.oid <> t.value::oid) AS is_taken
FROM pgonce.writers AS w CROSS JOIN LATERAL jsonb_each_text(w.targets) AS t
LEFT JOIN (pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace)
    ON c.oid = t.value::oid AND c.relkind IN ('r', 'p')
WHERE w.writer_id = ANY (:ids) ORDER BY 1, 2
""")
_SHARED = text("""
SELECT DISTINCT s.target_name
FROM unnest(CAST(:oids AS bigint[])) AS o (oid) CROSS JOIN LATERAL pg_partition_ancestors(o.oid::oid::regclass) AS a
JOIN pgonce.tombstone_sets AS s ON s.target = a.relid
WHERE a.relid::oid::bigint <> ALL (CAST(:oids AS bigint[])) AND s.expires_at > clock_timestamp()
""")
_FORGET_DELETES = text("""
DELETE FROM pgonce.tombstone_sets AS s USING unnest(CAST(:oids AS bigint[])) AS o (oid)
WHERE s.target = o.oid::oid OR s.target IN (SELECT t.relid FROM pg_partition_tree(o.oid::oid::regclass) AS t)
""")


def _fed(sink: SinkFacts) -> dict[str, int | None]:
    # After a restore, an oid that is not known is 0.
    return {sink.sink_name: None, **{name: oid or None for name, oid in (sink.targets or {}).items()}}


def _others(connection: Connection, sink: SinkFacts, chosen: Sequence[SinkFacts]) -> tuple[Writer, ...]:
    """The writers, but for those that are forgotten, that feed the sink or one of its tables, or have fed it."""
    forgotten = {known.writer_id for known in chosen}
    feeders = writers_in_tx(connection, COUNTS_AS_FEEDER, feeds(_fed(sink)))
    return tuple(one for one in feeders if one.writer_id not in forgotten)


def _checkpoint(location: str | None, query_id: str) -> tuple[CheckpointWriter, CheckpointFacts] | None:
    """The query's checkpoint, which shows whether it runs; None if it is gone, or another query's is there."""
    with suppress(CheckpointError):
        files = own_files(query_id, location)
        return CheckpointWriter(files), read_checkpoint(files)
    return None
