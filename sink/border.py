"""
Hide pgonce's own frames from the tracebacks that a user sees, so that the error's sentence comes first.

Runs where Spark calls us: in the planner's worker, in tasks, in the commit worker and on the driver. Invariant: an
error's text stays as it is, and so do the frames of the user's own code and those of unexpected errors; our frames go
to the log, at DEBUG. (Python 3.10 shows them all the same, because its bare raise brings them back.)

Spark puts the whole traceback into the text of its own error, and PySpark shows it twice more. On the driver it also
has frames of py4j and PySpark, which are added only after an error has left us; but the cause of an error is printed
before them, and so the error is its own cause there.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import ParamSpec, TypeVar

from pgonce.offsets_store.errors import PgonceError

_P = ParamSpec("_P")
_T = TypeVar("_T")

_log = logging.getLogger("pgonce")

_OUR_PACKAGE = __name__.partition(".")[0]


def called_by_spark(border: Callable[_P, _T]) -> Callable[_P, _T]:
    """Hide our frames in errors: for what Spark calls in its Python workers, and for what ``foreachBatch`` is given."""
    return calls_users_code(None)(border)


def calls_users_code(function: Callable[..., object] | None) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Like :func:`called_by_spark`, for what calls a user's ``function`` in turn: the frames of that are shown."""
    code = getattr(function, "__code__", None)

    def decorate(border: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(border)
        def at_the_border(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            try:
                return border(*args, **kwargs)
            except PgonceError as error:
                _shorten(error, code)
                raise
            except Exception as error:
                if interruption := interruption_in(error):
                    _log.debug("Spark has interrupted a batch", exc_info=True)
                    raise RuntimeError(_INTERRUPTED.format(interruption)) from None
                # The user's error, or Spark's: frames from before the function was called do not belong to it.
                if frames := _from(code, error.__traceback__):
                    error.__traceback__ = _joined(frames)
                raise

        return at_the_border

    return decorate


# When a query is stopped, Spark tells an interruption from a failure by a regular expression (PROXY_ERROR of its
# StreamExecution): the text from "py4j.protocol" on must be this, from PySpark 4.0 on with anything in between. A
# Py4JJavaError has a stack trace there, and from 2,000 characters on the expression overflows the stack.
_INTERRUPTED = (
    "Spark has interrupted this batch ({}), as it does when its query is stopped. What was not committed is rolled "
    "back, and the next start runs the batch again. py4j.protocol.Py4JJavaError: An error occurred while calling it."
    "\n: java.lang.InterruptedException"
)
_INTERRUPTIONS = frozenset({
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
})  # fmt: skip


def interruption_in(error: Exception) -> str | None:
    """What Java said if it was interrupted, or if Spark's job was cancelled: Spark does both to stop a query."""
    cause = getattr(error, "java_exception", None)
    while cause is not None:
        name = cause.getClass().getName()
        if name in _INTERRUPTIONS or (
            name == "org.apache.spark.SparkException" and cause.getErrorClass() == "SPARK_JOB_CANCELLED"
        ):
            return str(cause.toString())
        cause = cause.getCause()
    return None


def _shorten(error: PgonceError, code: CodeType | None) -> None:
    # Not even for the log: the cause may be an error of Postgres, which repeats a whole row.
    error.__cause__, error.__suppress_context__ = None, True
    _log.debug("[%s] was raised here", error.code, exc_info=True)
    if _is_sparks_worker():
        # Read by PySpark when it writes this error down. A worker that has raised is not used again.
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    frames = _from(code, error.__traceback__)
    ours = next((n for n, entry in enumerate(frames) if _is_ours(entry)), len(frames))
    # A bare raise keeps these frames, and does not add its own.
    error.__traceback__ = _joined(frames[:ours])
    if not _is_sparks_worker():
        error.__cause__ = type(error)(error.code, error.what, error.data, error.remedy)


def _is_sparks_worker() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def _from(code: CodeType | None, traceback: TracebackType | None) -> list[TracebackType]:
    """The entries of a traceback, beginning with the call of this code; none if it was not called."""
    entries: list[TracebackType] = []
    while traceback is not None:
        if entries or traceback.tb_frame.f_code is code:
            entries.append(traceback)
        traceback = traceback.tb_next
    return entries


def _is_ours(entry: TracebackType) -> bool:
    return entry.tb_frame.f_globals.get("__name__", "").partition(".")[0] == _OUR_PACKAGE


def _joined(entries: list[TracebackType]) -> TracebackType | None:
    joined = None
    for entry in reversed(entries):
        joined = TracebackType(joined, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return joined
