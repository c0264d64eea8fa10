"""
``foreachBatch`` with the user's own function: all that it writes is committed with the batch's offsets, or not at all.

Runs on the driver, in the thread that calls the function. Invariant: the batch's identity and offsets come from the
running query itself, never from what the caller passes or the function remembers.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import psycopg
from pyspark.sql import DataFrame
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import ConfigurationError, bad_option
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.offsets import Offsets
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.verdict.decide import SKIP
from pgonce.offsets_store.verdict.facts import Batch

from ..border import calls_users_code
from ..options.reading import Given
from ..positions import stored_already
from ..writing.first_look import refuse_first_batch
from ..writing.rooms import Rooms
from .batch_transaction import BatchTransaction, Steps
from .batch_writer import batch_settings_of

BatchFunction = Callable[[DataFrame, int], None]

_NOT_PLAIN = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


class _RaisedByFunctionError(Exception):
    """An error of another database, which must not be taken for one of the batch's."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def _call(
    function: Callable[[DataFrame, BatchTransaction], Any], frame: DataFrame, tx: BatchTransaction, steps: Steps
) -> None:
    try:
        result = function(frame, tx)
    except (psycopg.Error, DBAPIError) as error:
        if steps.may_have_raised():
            raise
        raise _RaisedByFunctionError(error) from None
    finally:
        steps.close()
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise _not_run(function)


def _not_run(function: object) -> ConfigurationError:
    return bad_option(
        "FUNCTION_NOT_RUN",
        f"{getattr(function, '__name__', 'The function')} is a coroutine or a generator: a call of it runs nothing, "
        "and the batch would be recorded without its rows.",
        "Write a plain function (def, without yield), which has written the batch when it returns.",
    )


def in_one_transaction(
    given: Given, rooms: Rooms
) -> Callable[[Callable[[DataFrame, BatchTransaction], None]], BatchFunction]:
    """
    Turn a function ``(batch, tx)`` into one for ``foreachBatch``: all that it does through ``tx`` is one transaction.

    :raises ConfigurationError: for options that cannot work.
    """
    name = given["name"]
    if not name:
        raise bad_option("OPTION_MISSING", "transactional_batch needs a name.", 'Give it one: name="orders".')
    settings = batch_settings_of(given)
    positions = settings.positions

    def decorate(function: Callable[[DataFrame, BatchTransaction], None]) -> BatchFunction:
        if any(is_kind(function) for is_kind in _NOT_PLAIN):
            raise _not_run(function)

        @calls_users_code(function)
        @functools.wraps(function)
        def write_batch(frame: DataFrame, batch_id: int) -> None:
            if positions:
                positions.check(frame.schema)

            def publish(connection: Connection, batch: Batch, stored: Offsets | None) -> Published:
                # The session may come from a pool, with temporary tables of an earlier batch. They would be in the way
                # of new ones, and would hide permanent tables of the same name.
                driver_connection(connection).execute("DISCARD TEMP")
                steps = Steps(connection)
                tx = BatchTransaction(connection, batch, steps, rooms)
                if positions is None:
                    _call(function, frame, tx, steps)
                    return steps.together(dropped=0)
                is_stored = stored_already(positions, stored, batch.span)
                _call(function, frame.where(~is_stored), tx, steps)
                return steps.together(dropped=frame.where(is_stored).count() if stored else 0)

            planned = settings.batch_of(frame, batch_id)
            with settings.failures_kept(planned, name):
                # Only the function knows which tables it writes to.
                refuse_first_batch(settings.commit, planned, name, None)
                work = settings.checked(frame, Work(lambda _: name, publish, sealed=True))
                try:
                    verdict = commit_batch(settings.commit, planned, work)
                except _RaisedByFunctionError as raised:
                    raise raised.error from raised.error.__cause__
            if verdict in SKIP:
                # A stateful query fails if a batch's frame is never run.
                frame.write.format("noop").mode("overwrite").save()

        return write_batch

    return decorate
