"""
Asynchronous progress tracking, where Spark's documentation gives up on exactly-once: a driver is killed at random.

``PGONCE_ASYNC_KILLS`` says how often; every kill meets each of the ways in at whatever it does just then.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import threading
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from chaos import async_job
from chaos.async_job import WAYS, Job, selected
from confluent_kafka import Producer
from support.audit import published
from support.fixtures.driver import with_tests_on_path
from support.fixtures.spark import KILLED_IN_ITS_FIRST_BATCH, spark_settings
from support.query_runs import reasons

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.kafka]

KILLS = int(os.environ.get("PGONCE_ASYNC_KILLS", "2"))
SEED = int(os.environ.get("PGONCE_ASYNC_SEED", str(secrets.randbelow(10**6))))
PARTITIONS = 3


class Records:
    """Keeps producing to a topic, until told to stop."""

    def __init__(self, bootstrap_servers, topic):
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 5})
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.counts = Counter()

    def _run(self):
        number = 0
        while not self._stop.wait(0.05):
            for _ in range(20):
                partition = number % PARTITIONS
                self._producer.produce(self._topic, str(number).encode(), partition=partition)
                self.counts[partition] += 1
                number += 1
            self._producer.flush()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self._producer.flush()


def test_nothing_is_lost_or_doubled(kafka, topic, url, observer, tmp_path, start_driver):
    """Killed at random moments, the first batch included, every table holds each selected row exactly once."""
    print(f"seed {SEED}, {KILLS} kills")
    dice = random.Random(SEED)
    name = topic(partitions=PARTITIONS)
    with psycopg.connect(url, autocommit=True) as connection:
        for way in WAYS:
            connection.execute(f"CREATE TABLE {way} (id text)".encode())
        connection.execute('ALTER TABLE source_staged ADD topic text, ADD "partition" int, ADD "offset" bigint')
    settings = (
        spark_settings(tmp_path, kafka=True) | {"spark.master": f"local[{len(WAYS)}]"} | KILLED_IN_ITS_FIRST_BATCH
    )
    checkpoints = tmp_path / "checkpoints"
    job = Job(url, kafka.bootstrap_servers, name, str(checkpoints), settings, tuple(WAYS))

    def start():
        return start_driver(Path(async_job.__file__), job.to_json(), env=with_tests_on_path())

    def all_there():
        return all(stored(observer, way) == expected(checkpoints / way, records.counts) for way in WAYS)

    with Records(kafka.bootstrap_servers, name) as records:
        for kill in range(KILLS):
            before = published(observer)
            driver = start()
            if kill == 0:
                # Anywhere in the first batches, which begin at the latest offset of that moment.
                driver.wait_for(checkpoints.exists, "there was a checkpoint")
                time.sleep(dice.uniform(0, 6))
            else:
                driver.wait_for(lambda seen=before: all_went_on(observer, seen), "each query went on")
                time.sleep(dice.uniform(0, 3))
            assert reasons(driver) == []
            driver.sigkill(workers=dice.random() < 0.8)
            assert doubled(observer) == {}
    driver = start()
    driver.wait_for(all_there, "all rows were there")
    driver.sigkill()
    assert doubled(observer) == {}
    for way in WAYS:
        rows, dropped = counted(observer, way)
        print(f"{way}: {rows} rows, {dropped} dropped")
        assert rows == len(stored(observer, way))


def all_went_on(observer, before):
    """Whether each query has published a batch since."""
    now = published(observer)
    return all(now.get(way, 0) > before.get(way, 0) for way in WAYS)


def counted(observer, way):
    """Rows published and rows dropped, as the ledger has them."""
    return observer.execute(
        "SELECT sum(rows), sum(dropped_rows) FROM pgonce.batches JOIN pgonce.writers USING (writer_id) "
        "WHERE query_name = %s",
        [way],
    ).fetchone()


def stored(observer, way):
    """The ids in a table."""
    return {row[0] for row in observer.execute(f"SELECT id FROM {way}".encode()).fetchall()}


def doubled(observer):
    """Ways whose table has a row twice."""
    counts = {
        way: observer.execute(f"SELECT count(*) - count(DISTINCT id) FROM {way}".encode()).fetchone()[0] for way in WAYS
    }
    return {way: count for way, count in counts.items() if count}


def expected(checkpoint, counts):
    """What the table must hold: all that is selected, from where the query's first batch began."""
    begun = json.loads((checkpoint / "sources" / "0" / "0").read_text().splitlines()[-1])
    (partitions,) = begun.values()
    return {
        row
        for partition, start in partitions.items()
        for offset in range(start, counts[int(partition)])
        for row in selected(int(partition), offset)
    }
