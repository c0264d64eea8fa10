"""
Check that Spark's Python workers have the driver's version of pgonce, and make their garbage collections cheap.

Runs in all processes of ``format("pgonce")``. Invariant: the version is asked for once, when the code is imported,
because an upgrade in place changes what is installed, while older processes live on with the code that they have. Code
that a task imports later must be of the same version. What is set aside from garbage collections was there when a
worker began its second piece of work, so nothing that grows with the stream can be among it.
"""

from __future__ import annotations

import functools
import gc
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pyspark import cloudpickle

from ..errors import SparkError


def _installed_version() -> str:
    try:
        return version("pgonce")
    except PackageNotFoundError:
        # Sources without their metadata do not say which version they are.
        return ""


# Asked when this module is imported, together with all other code of tasks.
LOADED_VERSION = _installed_version()


def other_version(whose: str, here: str, found: str) -> SparkError:
    """The error for two processes of one query that have loaded different versions."""
    return SparkError.usual(
        "NOT_ON_EXECUTORS",
        f"{whose} has pgonce {LOADED_VERSION or 'of an unknown version'}, but {here} has {found}.",
        "Install the same version on the driver and on every executor, and start the application again: a Python "
        "process goes on with the version that it has loaded, whatever is installed meanwhile.",
    )


# Filled in by the task: where it is, and what it lacks.
_WHERE = "the Python of an executor ({python} on host {host})"


@contextmanager
def importing() -> Iterator[None]:
    """
    Around imports that a first batch waits for: no garbage is collected meanwhile.

    Collections walk again and again over all that has been loaded so far, and find nothing: 8 % of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def imported_late(module: str) -> Iterator[None]:
    """
    Around the import of ``module`` in a task, which may come long after that of its other code.

    :raises SparkError: NOT_ON_EXECUTORS, also if another version was installed meanwhile.
    """
    if module in sys.modules:
        yield
        return
    failed: ImportError | None = None
    try:
        with importing():
            yield
    except ImportError as error:
        failed = error
    if (found := _installed_version()) != LOADED_VERSION:
        # The next task of this worker must not find it.
        sys.modules.pop(module, None)
        raise other_version("A task's process", "its Python", found or "no longer any")
    if failed is not None:
        raise _missing(_WHERE.format(python=sys.executable, host=socket.gethostname()), str(failed)) from None


def reduced(instance: object, code: str) -> tuple[Any, ...]:
    """
    For ``__reduce__``: an object that, where it cannot be unpickled, says what is missing there.

    The check needs nothing but Python's standard library, because pgonce may not be there at all.

    :param code: the module that a task imports; with it comes all that a task runs.
    """
    # With Spark's pickler, because a user's data source that is derived from ours may be defined in a script.
    state = cloudpickle.dumps((type(instance), instance.__dict__))
    other = other_version("The driver", _WHERE, "{reason}")
    return _unpickler(), (state, code, __name__, LOADED_VERSION, str(_missing()), str(other))


def _missing(where: str = _WHERE, reason: str = "{reason}") -> SparkError:
    return SparkError.usual(
        "NOT_ON_EXECUTORS",
        f'format("pgonce") writes in tasks too, and {where} cannot import it: {reason}.',
        f"Install pgonce {LOADED_VERSION} into that Python on every executor, or ship an environment that has it (an "
        "archive made by venv-pack or conda-pack: page `clusters` of the documentation). PostgresBatchWriter in "
        "foreachBatch needs pgonce on the driver alone.",
    )


@functools.cache
def _unpickler() -> Callable[..., object]:
    # Spark's pickler sends a function that is defined inside another one by value, and all others by name.
    def unpickle(state: bytes, code: str, versioned: str, expected: str, missing: str, other_version: str) -> object:
        import gc
        import importlib
        import os
        import pickle
        import socket
        import sys

        def refusal(text: str, reason: object) -> ImportError:
            # PySpark then writes down the text alone. This worker is not used again.
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            return ImportError(text.format(python=sys.executable, host=socket.gethostname(), reason=reason))

        gc.disable()
        try:
            found = importlib.import_module(versioned).LOADED_VERSION
            importlib.import_module(code)
        except ImportError as error:
            raise refusal(missing, error) from None
        finally:
            gc.enable()
        if expected and found and found != expected:
            raise refusal(other_version, found)
        kind, attributes = pickle.loads(state)  # noqa: S301 (Spark itself unpickles what this came in)
        instance = kind.__new__(kind)
        instance.__dict__.update(attributes)
        return instance

    return unpickle


_begun: Counter[str] = Counter()


def settle(work: str) -> None:
    """
    Set aside what this worker has loaded, so that later collections need not look at it; for the start of ``work``.

    Spark's daemon calls ``gc.collect()`` after every use of a worker, which walks over everything that was ever
    imported. With small batches that took most of our workers' time (338 ms of CPU a batch of 1,000 rows before, 165 ms
    after). Done once for each kind of work, because each kind imports modules of its own; and when it begins for the
    second time, because by then the daemon has collected what the first time has left, while no batch waited for it.
    """
    _begun[work] += 1
    if _begun[work] == 2:  # noqa: PLR2004
        gc.freeze()
