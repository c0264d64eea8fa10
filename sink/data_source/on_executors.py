"""
Does an executor have what a task needs: pgonce, in the driver's version?

Made in the planner's worker, runs in tasks. Invariant: the check needs nothing but Python's standard library, because
it runs before pgonce is imported, and pgonce may not be there at all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from pyspark import cloudpickle

from pgonce.offsets_store.errors import NOTHING

from ..errors import SparkError
from .loaded_version import LOADED_VERSION, other_version

# Filled in by the task: where it is, and what it lacks.
_WHERE = "the Python of an executor ({python} on host {host})"


def reduced(instance: object) -> tuple[Any, ...]:
    """For ``__reduce__``: an object that, where it cannot be unpickled, says what is missing there."""
    # With Spark's pickler, because a data source that somebody derived from ours may be defined in a script.
    state = cloudpickle.dumps((type(instance), instance.__dict__))
    other = other_version("The driver", _WHERE, "{reason}")
    return _unpickler(), (state, LOADED_VERSION, str(_missing()), str(other))


def _missing() -> SparkError:
    return SparkError(
        "NOT_ON_EXECUTORS",
        f'format("pgonce") writes in tasks too, and {_WHERE} cannot import it: {{reason}}.',
        NOTHING,
        f"Install pgonce {LOADED_VERSION} into that Python on every executor, or ship an environment that has it (an "
        "archive made by venv-pack or conda-pack: `pgonce explain clusters`). PostgresBatchWriter in "
        "foreachBatch needs pgonce on the driver alone.",
    )


@cache
def _unpickler() -> Callable[[bytes, str, str, str], object]:
    # Spark's pickler sends a function that is defined inside another one by value, and all others by name.
    def unpickle(state: bytes, expected: str, missing: str, other_version: str) -> object:
        import os
        import pickle
        import socket
        import sys

        def refusal(text: str, reason: object) -> ImportError:
            # PySpark then writes down the text alone. This worker is not used again.
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            return ImportError(text.format(python=sys.executable, host=socket.gethostname(), reason=reason))

        try:
            import pgonce.sink.data_source.loaded_version as installed
            import pgonce.sink.data_source.spark_interface  # noqa: F401
        except ImportError as error:
            raise refusal(missing, error) from None
        found = installed.LOADED_VERSION
        if expected and found and found != expected:
            raise refusal(other_version, found)
        kind, attributes = pickle.loads(state)  # noqa: S301 (Spark itself unpickles what this came in)
        instance = kind.__new__(kind)
        instance.__dict__.update(attributes)
        return instance

    return unpickle
