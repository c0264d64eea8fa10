"""
Lock a writer and read what the ledger says of it, inside the transaction that publishes a batch.

Runs in the commit. Invariant: every function takes a connection whose transaction the caller owns, and all that is read
of a writer is read under the lock on its row. From the begin to the user's SQL, our search_path is in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg import sql
from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    FromClause,
    Row,
    and_,
    bindparam,
    func,
    literal,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert as insert_or_ignore

from pgonce.offsets_store.ledger.tables import batches, interventions, replays, runs, writers
from pgonce.offsets_store.offsets.positions import furthest
from pgonce.offsets_store.postgres.bounds import server_settings
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.postgres.search_path import KEPT_IN, OURS
from pgonce.offsets_store.verdict.facts import Batch, Ledger, Recorded, Writer
from pgonce.offsets_store.verdict.reads import recorded_reads
from pgonce.offsets_store.verdict.rivals import Neighbour, rivals_of


@dataclass(frozen=True)
class LockedWriter:
    """The writer's key, its generation, and what the ledger says of it and of the batch at hand."""

    writer_id: int
    generation: int
    ledger: Ledger
    has_acceptances: bool = False


@dataclass(frozen=True)
class TransactionState:
    """Which transaction this is, whether its COMMIT waits for the disk, and which process of the server runs it."""

    xid: str
    synchronous_commit: str
    # Asked of the server, because behind a pooler the process id that libpq knows is made up.
    backend_pid: int


# Every name has its schema, because the user's search_path is in force. Postgres keeps this order: the user's
# search_path is remembered before ours takes its place.
_STATE = select(
    literal_column("pg_catalog.pg_current_xact_id()::pg_catalog.text").label("xid"),
    func.pg_catalog.current_setting("synchronous_commit").label("synchronous_commit"),
    func.pg_catalog.pg_backend_pid().label("backend_pid"),
    func.pg_catalog.set_config(KEPT_IN, func.pg_catalog.current_setting("search_path"), True),
    func.pg_catalog.set_config("search_path", OURS, True),
)
_BEGIN = _STATE.add_columns(
    *(
        func.pg_catalog.set_config(name, value, True)
        for name, value in {
            "statement_timeout": "0",
            "idle_in_transaction_session_timeout": "0",
            "lock_timeout": bindparam("lock_timeout"),
            "application_name": bindparam("application"),
            "tcp_user_timeout": bindparam("tcp_user_timeout"),
            "tcp_keepalives_idle": bindparam("tcp_keepalives_idle"),
            "tcp_keepalives_interval": bindparam("tcp_keepalives_interval"),
            "tcp_keepalives_count": bindparam("tcp_keepalives_count"),
        }.items()
    )
)
_BEGIN_17 = _BEGIN.add_columns(func.pg_catalog.set_config("transaction_timeout", "0", True))


def begin_in_tx(connection: Connection, application: str, lock_timeout_seconds: float) -> TransactionState:
    """
    Begin: set our search_path, lift the session's time limits, and say which transaction this is.

    The server is to notice that this client is gone as soon as the client would notice the same of the server, because
    its locks are in the way of others. All settings are local to the transaction, because behind a pooler the session
    is somebody else's afterwards.
    """
    is_17 = connection.dialect.server_version_info >= (17,)  # type: ignore[operator]
    settings = {
        "application": application,
        "lock_timeout": f"{int(lock_timeout_seconds * 1000)}",
        **server_settings(driver_connection(connection)),
    }
    return TransactionState(*connection.execute(_BEGIN_17 if is_17 else _BEGIN, settings).one()[:3])


class SnapshotTooOldError(Exception):
    """
    The transaction is repeatable read or serializable, and does not see rivals that were recorded since it began.

    The remedy is :func:`begin_again_in_tx`.
    """


def begin_again_in_tx(
    connection: Connection, sink_name: str, application: str, lock_timeout_seconds: float
) -> TransactionState:
    """Begin another transaction, which sees all queries that have fed this sink and keeps new ones out meanwhile."""
    # One text, so that no pooler can give the session to others while the session holds a lock. AND CHAIN keeps the
    # user's isolation level. The second lock takes the new snapshot, under the protection of the first. (If another
    # driver of this writer holds its row and waits for the lock, that is a deadlock, which passes.)
    again = sql.SQL(
        "SELECT pg_catalog.pg_advisory_lock({key}); ROLLBACK AND CHAIN; "
        "SELECT pg_catalog.pg_advisory_xact_lock({key}); SELECT pg_catalog.pg_advisory_unlock({key})"
    ).format(key=sql.SQL("pg_catalog.hashtextextended({}, 0)").format(sql.Literal(sink_name)))
    driver_connection(connection).execute(again)
    return begin_in_tx(connection, application, lock_timeout_seconds)


def transaction_state_in_tx(connection: Connection) -> TransactionState:
    """Set our search_path again after the user's SQL, and say which transaction this is now."""
    return TransactionState(*connection.execute(_STATE).one()[:3])


def lock_writer_in_tx(
    connection: Connection, batch: Batch, replaces: str | None, *, sees_rivals: bool = False
) -> LockedWriter:
    """
    Lock the writer's row, which is created if it is new, and read what the verdict needs.

    A new row has no ``last_batch_id``. It disappears again if the batch is refused and the transaction rolled back.

    :param sees_rivals: whether the transaction was begun by :func:`begin_again_in_tx`.
    :raises SnapshotTooOldError: if rivals must be looked for, and the transaction would not see them.
    """
    row = connection.execute(_LOCK, _identity(batch)).one_or_none()
    if row is None:
        # INSERT, never SELECT and then INSERT: two drivers could both read "absent". The key makes the second one wait.
        connection.execute(_CREATE, {**_identity(batch), "guarantee": batch.guarantee})
        row = connection.execute(_LOCK, _identity(batch)).one()
    if row.last_batch_id is None:
        # Without this lock, two new queries of one sink that start together would not see each other as rivals.
        isolation = connection.execute(_ONE_FIRST_CONTACT, {"sink": batch.sink_name}).one().isolation
        # Under read committed, a statement sees what was committed before it. Under a snapshot, it does not see a rival
        # that was recorded since, though it has waited for it. (This has happened: both queries fed the sink.)
        if isolation != "read committed" and not sees_rivals:
            raise SnapshotTooOldError
        rivals = rivals_of(batch, _neighbours_in_tx(connection, batch, replaces), replaces)
        return LockedWriter(row.writer_id, row.generation, Ledger(rivals=rivals))
    facts = _facts_in_tx(connection, row, batch)
    return LockedWriter(row.writer_id, row.generation, _ledger(row, batch, facts), facts.has_acceptances)


def _identity(batch: Batch) -> dict[str, str]:
    return {"query": batch.query_id, "sink": batch.sink_name}


_LOCK = (
    select(writers)
    .where(writers.c.query_id == bindparam("query"), writers.c.sink_name == bindparam("sink"))
    .with_for_update()
)
_ONE_FIRST_CONTACT = select(
    func.pg_advisory_xact_lock(func.hashtextextended(bindparam("sink"), 0)),
    func.current_setting("transaction_isolation").label("isolation"),
)
_CREATE = (
    insert_or_ignore(writers)
    .values(query_id=bindparam("query"), sink_name=bindparam("sink"), guarantee=bindparam("guarantee"))
    .on_conflict_do_nothing()
)

_same_id = batches.alias("same_id")
_last = batches.alias("last")
_previous = batches.alias("previous")


def _record_of(record: FromClause, batch: str) -> ColumnElement[bool]:
    return and_(
        record.c.writer_id == bindparam("writer"),
        record.c.generation == bindparam("generation"),
        record.c.batch_id == bindparam(batch),
    )


def is_open(writer_id: int | BindParameter[int]) -> ColumnElement[bool]:
    """The condition for the acceptances of a writer that have not been used yet."""
    return and_(
        interventions.c.writer_id == writer_id,
        interventions.c.kind == "accept",
        interventions.c.used_at.is_(None),
    )


_FACTS = (
    select(
        _same_id,
        _last,
        _previous,
        select(literal(1))
        .where(runs.c.writer_id == bindparam("writer"), runs.c.run_id == bindparam("run"))
        .exists()
        .label("was_owner"),
        select(literal(1)).where(is_open(bindparam("writer"))).exists().label("has_acceptances"),
        select(replays.c.attempt)
        .where(
            replays.c.writer_id == bindparam("writer"),
            replays.c.generation == bindparam("generation"),
            replays.c.batch_id == bindparam("batch"),
            replays.c.run_id == bindparam("run"),
        )
        .scalar_subquery()
        .label("skipped_by"),
    )
    .select_from(
        select(literal(1).label("one"))
        .subquery()
        .outerjoin(_same_id, _record_of(_same_id, "batch"))
        .outerjoin(_last, _record_of(_last, "last_batch"))
        .outerjoin(_previous, _record_of(_previous, "previous_batch"))
    )
    .set_label_style(2)  # type: ignore[arg-type]
)


def _facts_in_tx(connection: Connection, row: Row[tuple[object, ...]], batch: Batch) -> Row[tuple[Any, ...]]:
    return connection.execute(
        _FACTS,
        {
            "writer": row.writer_id,
            "generation": row.generation,
            "batch": batch.batch_id,
            "last_batch": row.last_batch_id,
            # It is usually the last batch, whose long text need not be sent twice.
            "previous_batch": None if batch.previous_batch_id == row.last_batch_id else batch.previous_batch_id,
            "run": batch.run_id,
        },
    ).one()


def _ledger(row: Row[tuple[object, ...]], batch: Batch, facts: Row[tuple[Any, ...]]) -> Ledger:
    follows_last = batch.previous_batch_id == row.last_batch_id
    return Ledger(
        writer=Writer(
            generation=row.generation,
            last_batch_id=row.last_batch_id,
            end_offsets=row.end_offsets,
            run_id=row.run_id,
            guarantee=row.guarantee,
            replaced_by=row.replaced_by,
            is_retired=row.retired_at is not None,
            targets=row.targets,
            reads=recorded_reads(row.sources),
        ),
        same_id=_recorded(facts, "same_id"),
        last=_recorded(facts, "last"),
        previous=_recorded(facts, "last" if follows_last else "previous"),
        was_owner=facts.was_owner,
        skipped_by=facts.skipped_by,
    )


def _recorded(facts: Row[tuple[object, ...]], alias: str) -> Recorded | None:
    columns = facts._mapping
    return None if columns[f"{alias}_batch_id"] is None else recorded(columns, f"{alias}_")


def recorded(columns: Mapping[Any, Any], prefix: str = "") -> Recorded:
    """A row of ``batches``; the names of its columns may begin with a ``prefix``."""
    return Recorded(
        batch_id=columns[f"{prefix}batch_id"],
        run_id=columns[f"{prefix}run_id"],
        attempt=columns[f"{prefix}attempt"],
        start=columns[f"{prefix}start_offsets"],
        end=columns[f"{prefix}end_offsets"],
        offset_log=columns[f"{prefix}offset_log"],
        positions=columns[f"{prefix}positions"],
        topic_ids=columns[f"{prefix}topic_ids"],
    )


def is_accepted_in_tx(connection: Connection, locked: LockedWriter, batch: Batch) -> bool:
    """Whether a person has accepted this batch of this writer, and that has not been used yet."""
    standing = select(literal(1)).where(is_open(locked.writer_id), interventions.c.batch_id == batch.batch_id)
    return locked.has_acceptances and connection.execute(standing).first() is not None


def close_acceptances_in_tx(connection: Connection, locked: LockedWriter, batch: Batch) -> None:
    """Mark what was accepted up to this batch as used: the batch is published, whether it needed that or not."""
    if locked.has_acceptances:
        up_to_this = and_(is_open(locked.writer_id), interventions.c.batch_id <= batch.batch_id)
        connection.execute(update(interventions).where(up_to_this).values(used_at=func.clock_timestamp()))


_is_last = and_(
    _last.c.writer_id == writers.c.writer_id,
    _last.c.generation == writers.c.generation,
    _last.c.batch_id == writers.c.last_batch_id,
)


# Writers that may publish, and have published. A first batch that was rolled back leaves nothing that counts.
IS_LIVING = and_(writers.c.last_batch_id.is_not(None), writers.c.replaced_by.is_(None), writers.c.retired_at.is_(None))
NEIGHBOURS = select(writers, _last.c.positions, _last.c.topic_ids, _last.c.end_offsets.label("last_end")).select_from(
    writers.outerjoin(_last, _is_last)
)


def _neighbours_in_tx(connection: Connection, batch: Batch, replaces: str | None) -> tuple[Neighbour, ...]:
    """The other queries that feed this sink, and the one that is to be replaced, whatever became of it."""
    if replaces is not None:
        # The old query may still run. It must not publish between this reading of its end and its replacement.
        connection.execute(_LOCK, {"query": replaces, "sink": batch.sink_name})
    theirs = NEIGHBOURS.where(
        writers.c.sink_name == batch.sink_name,
        writers.c.query_id != batch.query_id,
        or_(IS_LIVING, and_(writers.c.last_batch_id.is_not(None), writers.c.query_id == literal(replaces))),
    )
    return tuple(map(neighbour, connection.execute(theirs)))


def neighbour(row: Row[Any]) -> Neighbour:
    """A row of :data:`NEIGHBOURS`."""
    end = row.end_offsets or row.last_end
    return Neighbour(
        row.query_id,
        row.query_name,
        row.checkpoint_location,
        # A batch that was run again may end before what is stored.
        end if row.positions is None else furthest(end, row.positions),
        recorded_reads(row.sources),
        row.topic_ids,
    )
