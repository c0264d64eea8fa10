"""
Does an executor have what a task needs: pgonce, in the driver's version?

Made in the planner's worker, runs in tasks. Invariant: the check needs nothing but Python's standard library, because
it runs before pgonce is imported, and pgonce may not be there at all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pyspark import cloudpickle

from pgonce.offsets_store.errors import NOTHING
from pgonce.sink.errors import SparkError

# Filled in by the task: where it is, and what it lacks.
_WHERE = "the Python of an executor ({python} on host {host})"


def reduced(instance: object) -> tuple[Any, ...]:
    """For ``__reduce__``: an object that, where it cannot be unpickled, says what is missing there."""
    # With Spark's pickler, because a data source that somebody derived from ours may be defined in a script.
    state = cloudpickle.dumps((type(instance), instance.__dict__))
    return _unpickler(), (state, _version(), str(_missing()), str(_other_version()))


@cache
def _version() -> str:
    try:
        return version("pgonce")
    except PackageNotFoundError:
        return ""


def _missing() -> SparkError:
    return SparkError(
        "NOT_ON_EXECUTORS",
        f'format("pgonce") writes in tasks too, and {_WHERE} cannot import it: {{reason}}.',
        NOTHING,
        f"Install pgonce {_version()} into that Python on every executor, or ship an environment that has it (an "
        "archive made by venv-pack or conda-pack: `pgonce explain clusters`). PostgresBatchWriter in "
        "foreachBatch needs pgonce on the driver alone.",
    )


def _other_version() -> SparkError:
    return SparkError(
        "OTHER_VERSION",
        f"The driver has pgonce {_version()}, but {_WHERE} has {{reason}}.",
        NOTHING,
        "Install the same version on the driver and on every executor.",
    )


@cache
def _unpickler() -> Callable[[bytes, str, str, str], object]:
    # Spark's pickler sends a function that is defined inside another one by value, and all others by name.
    def unpickle(state: bytes, expected: str, missing: str, other_version: str) -> object:
        import os
        import pickle
        import socket
        import sys
        from importlib.metadata import PackageNotFoundError, version

        def refusal(text: str, reason: object) -> ImportError:
            # PySpark then writes down the text alone. This worker is not used again.
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            return ImportError(text.format(python=sys.executable, host=socket.gethostname(), reason=reason))

        try:
            import pgonce.sink.data_source.spark_interface as installed
        except ImportError as error:
            raise refusal(missing, error) from None
        # Asking costs a millisecond. The answer is kept in that module, because this function has no module here.
        asked = vars(installed).setdefault("versions_met", set())
        if expected not in asked:
            try:
                found = version("pgonce")
            except PackageNotFoundError:
                # Sources without their metadata do not say which version they are.
                found = expected
            if expected and found != expected:
                raise refusal(other_version, found)
            asked.add(expected)
        kind, attributes = pickle.loads(state)  # noqa: S301 (Spark itself unpickles what this came in)
        instance = kind.__new__(kind)
        instance.__dict__.update(attributes)
        return instance

    return unpickle
