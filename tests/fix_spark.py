"""
Which Spark do the tests run on? One driver for the session, in this process, with two task slots.

Runs in: pytest. Invariant: workers import the installed wheel, never the source tree, and no query outlives
its test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kafka_broker import MissingTool, spark_connector_jars
from pyspark.sql import SparkSession
from spark.session import started_session
from spark_classes import OF_THIS_PYTHON, driver_jvm_options


def spark_settings(directory: Path, *, kafka: bool) -> dict[str, str]:
    """Settings of the tests' drivers; ANSI mode stays as Spark ships it."""
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        # No name lookups: a build machine may not resolve its own name.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.extraJavaOptions": driver_jvm_options(),
    }
    if kafka:
        with suppress(MissingTool):  # the broker's fixture says so
            settings["spark.jars"] = ",".join(str(jar) for jar in spark_connector_jars())
    return settings


# A driver that was killed while it wrote offsets/0 leaves a file .0.<uuid>.tmp there. Spark takes that for another
# query's, and refuses the checkpoint (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY); `pgonce recover` mends it.
KILLED_IN_ITS_FIRST_BATCH = {"spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false"}


def spark_environment() -> dict[str, str]:
    """Environment of a driver: its Python for the workers too, no working directory on their path, a quick start."""
    return {**OF_THIS_PYTHON, "SPARK_SUBMIT_OPTS": driver_jvm_options()}


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session's driver; it has the Kafka connector when a test of this run asks for a broker."""
    os.environ.update(spark_environment())
    wants_kafka = any("kafka" in getattr(item, "fixturenames", ()) for item in request.session.items)
    session = started_session("pgonce-tests", spark_settings(tmp_path_factory.mktemp("spark"), kafka=wants_kafka))
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _no_query_outlives_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Path for a query's checkpoint; nothing is there yet."""
    return str(tmp_path / "checkpoint")
