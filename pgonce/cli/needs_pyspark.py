"""
Which words does a command have where it needs pyspark's types, and pyspark is not installed?

Runs in a shell, without Spark. Invariant: a module that is missing for another reason is not explained away.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pgonce.offsets_store.errors import ConfigurationError


@contextmanager
def needing_pyspark(what_for: str, data: str) -> Iterator[None]:
    """
    Imports of what needs pyspark.

    :param what_for: why pyspark is needed; the sentence goes on with "and pyspark is not installed here".
    :param data: what the error means for the data.
    :raises ConfigurationError: NO_PYSPARK.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise
        raise ConfigurationError(
            "NO_PYSPARK",
            f"{what_for}, and pyspark is not installed here.",
            data,
            "Give the command where the query's driver runs, or install it: pip install 'pgonce[spark]'. No Spark is "
            "started.",
        ) from error
