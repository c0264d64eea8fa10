"""
Refuse a query's first batch early, if the ledger already shows that it could not be recorded.

Runs in the planner's worker, in the foreachBatch function, and where a batch job is planned, before a row is computed.
Invariant: it proves nothing for the commit, which decides again under its locks. It takes no lock, writes nothing and
leaves no session; what it cannot decide is left to the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import psycopg

from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.work import NamedSink
from pgonce.offsets_store.errors import NOTHING, ConnectError, LedgerError, NoLedgerError
from pgonce.offsets_store.ledger import SCHEMA
from pgonce.offsets_store.ledger.feeders import concern_in_tx
from pgonce.offsets_store.ledger.migrations import require_ledger
from pgonce.offsets_store.postgres.bounds import enter_in_tx
from pgonce.offsets_store.postgres.connect import connect, driver_connection, lone
from pgonce.offsets_store.preflight.role import OF_ANY_BATCH, OF_ANY_JOB, Needed, listed, may_create, missing_on_ledger
from pgonce.offsets_store.verdict.decide import PUBLISH, SKIP, decide, stored_positions
from pgonce.offsets_store.verdict.facts import Batch, Ledger, PlannedBatch, Remedies
from pgonce.offsets_store.verdict.refused_batch import refusal

from ..options.destination import Destination
from ..options.routes import Routes
from .first_look import CONNECT_SECONDS
from .write_batch import named_sink

_log = logging.getLogger("pgonce")

_LOCK_SECONDS = 1.0


def refuse_first_batch(
    settings: CommitSettings, batch: PlannedBatch | None, sink_name: str | None, where: Destination | Routes | None
) -> None:
    """
    Refuse batch 0 of a query where the ledger shows a rival, or the role may not write the ledger.

    :param batch: None for a batch job, which has no rivals. A batch that is not a query's first passes.
    :param where: None where the tables are known only when they are written to.
    :raises LedgerError: LEDGER_NOT_PERMITTED.
    :raises RefusedBatch: as the commit would.
    :raises TargetError: as the commit would, for a table's name.
    """
    if batch is not None and batch.batch_id > 0:
        return
    try:
        with connect(settings.url, connect_timeout=CONNECT_SECONDS) as connection:
            connection.read_only, connection.deferrable = True, False
            named = NamedSink(sink_name or "") if where is None else named_sink(connection, sink_name, where)
            _enter(connection)
            if not _may_be_recorded(connection, OF_ANY_BATCH if batch else OF_ANY_JOB) or batch is None:
                return
            first = batch.into(named.name, named.tables)
            has_past = settings.remedies.replaces is not None or concern_in_tx(connection, first)
            connection.rollback()
        # Most queries find nothing of the kind, and then nothing imports SQLAlchemy before the commit does.
        ledger = _what_is_known(settings, first) if has_past else Ledger()
    except ConnectError as error:
        _log.info("the commit will check the ledger: %s", error)
    except psycopg.Error as error:
        _log.info("the commit will check the ledger: %s", type(error).__name__)
    else:
        if ledger is not None:
            _refuse_rivals(ledger, settings.remedies, first)


def _may_be_recorded(connection: psycopg.Connection, needed: Sequence[Needed]) -> bool:
    """Whether there is a ledger to read; :raises LedgerError: if the role can neither write it nor create one."""
    try:
        require_ledger(connection)
    except LedgerError as error:
        if isinstance(error, NoLedgerError) and not any(may_create(connection)):
            raise _not_permitted(f"create the schema {SCHEMA}, which is not there yet") from None
        # The commit will create it, bring it up to date, or say why it cannot.
        return False
    if missing := missing_on_ledger(connection, needed):
        raise _not_permitted(f"record a batch: it lacks {listed(missing)}")
    return True


def _not_permitted(what: str) -> LedgerError:
    return LedgerError(
        "LEDGER_NOT_PERMITTED",
        f"The role may not {what}.",
        NOTHING,
        "Have an administrator run `pgonce init --role <role>` (or the SQL of `pgonce init --sql --role <role>`).",
    )


def _enter(connection: psycopg.Connection) -> None:
    enter_in_tx(connection, _LOCK_SECONDS)
    connection.execute("SET LOCAL statement_timeout = '5s'")


def _what_is_known(settings: CommitSettings, batch: Batch) -> Ledger | None:
    """What the ledger says of the query and its rivals; None if the query is not new, or that cannot be read now."""
    import sqlalchemy.exc

    from pgonce.offsets_store.ledger.lock import unknown_writer_in_tx

    remedies = settings.remedies
    try:
        with lone(settings.url, connect_timeout=CONNECT_SECONDS) as connection:
            driver = driver_connection(connection)
            driver.read_only, driver.deferrable = True, False
            _enter(driver)
            ledger = unknown_writer_in_tx(connection, batch, remedies.replaces, start_over=remedies.start_over)
            driver.rollback()
            return ledger
    except sqlalchemy.exc.SQLAlchemyError as error:
        _log.info("the commit will check the ledger: %s", type(error).__name__)
        return None


def _refuse_rivals(ledger: Ledger, remedies: Remedies, batch: Batch) -> None:
    if batch.span is None and stored_positions(ledger, remedies) is not None:
        # The rows may carry positions, which tell which of them the replaced query has stored.
        return
    verdict = decide(ledger, batch, remedies)
    if verdict not in PUBLISH | SKIP:
        raise refusal(verdict, ledger, batch, remedies)
