"""
Make what the drivers and servers of tests need, before the first of them: the archive of Spark's classes, and the jars.

Runs in: a process of its own, next to tests that need none of it; ``python made_ahead.py``. Invariant: what it cannot
make, a test tries to make again, and says what is wrong.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from kafka_broker import MissingTool, broker_jars, spark_connector_jars
from postgres_binaries import bin_dir
from spark_classes import driver_jvm_options

_WITH_ICU = 17


def main() -> None:
    """Make all of it, the archive and the jars at the same time."""
    with ThreadPoolExecutor(2) as pool:
        pool.submit(driver_jvm_options)
        pool.submit(_jars)


def _jars() -> None:
    with suppress(MissingTool):
        spark_connector_jars()
        broker_jars()
        # The one with ICU, where the machine has none.
        bin_dir(_WITH_ICU)


if __name__ == "__main__":
    main()
