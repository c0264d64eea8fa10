"""
Drivers in real-time and continuous mode are killed while records come: each is in the table once, in order.

Covers: pgonce.real_time.start, pgonce.real_time.java_writer.
"""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import psutil
import pytest
from support.fixtures.driver import with_tests_on_path
from support.fixtures.spark import spark_settings
from support.signals import strike

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

JOB = Path(__file__).parents[1] / "support" / "real_time_job.py"
TRIGGERS = {"real-time": {"real_time": "5 seconds"}, "continuous": {"continuous": "1 second"}}
_PARTITIONS = 2


@pytest.fixture
def numbers(admin):
    """The table, which keeps the order in which its rows came."""
    admin.execute(
        'CREATE TABLE numbers (id bigint, topic text, partition int, "offset" bigint, '
        "n bigint GENERATED ALWAYS AS IDENTITY)"
    )


@pytest.fixture
def start(kafka, tcp_url, tmp_path, start_driver):
    """Start a driver with the query over a topic."""

    def begin(topic, trigger, **more):
        settings = spark_settings(tmp_path, kafka=True) | {"spark.master": "local[2]"} | more
        given = {
            "url": tcp_url,
            "servers": kafka.bootstrap_servers,
            "topic": topic,
            "checkpoint": str(tmp_path / "query"),
            "trigger": TRIGGERS[trigger],
            "spark": settings,
        }
        return start_driver(JOB, json.dumps(given), env=with_tests_on_path())

    return begin


def once_and_in_order(observer, count):
    """Whether the table has each number once, and each partition's in their order."""
    total, distinct = observer.execute("SELECT count(*), count(DISTINCT id) FROM numbers").fetchone()
    backwards = observer.execute(
        'SELECT count(*) FROM (SELECT "offset" - lag("offset") OVER (PARTITION BY partition ORDER BY n) AS step '
        "FROM numbers) AS s WHERE step <> 1"
    ).fetchone()[0]
    assert (total, distinct, backwards) == (count, count, 0)


def rows_in(observer):
    """How many rows the table has."""
    return observer.execute("SELECT count(*) FROM numbers").fetchone()[0]


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_killed_again_and_again(trigger, start, topic, producing, numbers, observer):
    """Three drivers are killed at any moment under load, and the fourth brings all that is left."""
    name = topic(_PARTITIONS)
    end = producing(name, _PARTITIONS)
    moments = random.Random(trigger)
    for _ in range(3):
        driver = start(name, trigger)
        before = rows_in(observer)
        driver.wait_for(lambda before=before: rows_in(observer) > before + 100, "rows came")
        time.sleep(moments.uniform(0, 3))
        driver.sigkill()
    count = end()
    driver = start(name, trigger)
    driver.wait_for(lambda: rows_in(observer) >= count, "all rows came")
    once_and_in_order(observer, count)


def test_a_frozen_driver_wakes_up(start, topic, producing, numbers, observer):
    """A driver that was frozen wakes up after another has taken over: it writes nothing more, and ends."""
    name = topic(_PARTITIONS)
    end = producing(name, _PARTITIONS)
    frozen = start(name, "real-time")
    frozen.wait_for(lambda: rows_in(observer) > 100, "rows came")
    processes = [psutil.Process(process.pid) for process in frozen.processes()]
    for process in processes:
        strike(process.pid, signal.SIGSTOP)
    second = start(name, "real-time")
    before = rows_in(observer)
    second.wait_for(lambda: rows_in(observer) > before + 100, "rows of the second driver came")
    for process in processes:
        process.send_signal(signal.SIGCONT)
    frozen.wait(120)
    assert "[FENCED]" in frozen.output()
    count = end()
    second.wait_for(lambda: rows_in(observer) >= count, "all rows came")
    once_and_in_order(observer, count)
