"""
Start Spark in the drivers of the tests.

Runs in: the jobs that tests start as drivers, and in pytest's own driver. Invariant: what differs between them is in
the settings.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession


def started_session(application: str, settings: Mapping[str, str], log_level: str = "ERROR") -> SparkSession:
    """A session with these settings, that logs from this level on."""
    builder = SparkSession.builder.appName(application)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(log_level)
    return session
