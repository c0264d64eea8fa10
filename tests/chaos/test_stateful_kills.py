"""
Queries that keep state on RocksDB, in a driver that is killed at random: every table is what a plain batch would make.

``PGONCE_STATEFUL_KILLS`` says how often; every kill meets each query at whatever it does just then. At each start every
query changes between snapshots of its state and changelogs. A few kills meet each kind of state over one of the ways in
that add rows, chosen by seed; more kills meet it over both.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from chaos import stateful_job
from chaos.stateful_job import KINDS, ON_ROCKSDB, SUBJECTS, Job
from support.audit import published, replays, wrong_ledger, wrong_rows
from support.fixtures.driver import with_tests_on_path
from support.fixtures.spark import KILLED_IN_ITS_FIRST_BATCH, spark_settings
from support.inbox import Inbox
from support.query_runs import reasons

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KILLS = int(os.environ.get("PGONCE_STATEFUL_KILLS", "1"))
SEED = int(os.environ.get("PGONCE_STATEFUL_SEED", str(secrets.randbelow(10**6))))
ROWS_OF_A_FILE = 12
FILES_OF_A_RUN = 3
FEW_KILLS = 3


def test_nothing_is_lost_or_doubled(url, observer, tmp_path, start_driver):
    """Killed at random moments, the first batch included, every query ends with the table that its rows say."""
    print(f"seed {SEED}, {KILLS} kills")
    dice = random.Random(SEED)
    inbox = Inbox(tmp_path / "inbox")
    subjects = SUBJECTS if KILLS > FEW_KILLS else chosen(dice)
    with psycopg.connect(url, autocommit=True) as connection:
        for subject in subjects:
            key = ", PRIMARY KEY (id)" if subject.way.upserts else ""
            connection.execute(f"CREATE TABLE {subject.name} ({KINDS[subject.kind].columns}{key})".encode())
    settings = spark_settings(tmp_path, kafka=False) | ON_ROCKSDB | KILLED_IN_ITS_FIRST_BATCH

    def start(number, *, ends=False):
        for _ in range(FILES_OF_A_RUN):
            inbox.add(ROWS_OF_A_FILE)
            # Spark reads files in the order of their times, which some file systems keep in steps of 4 ms.
            time.sleep(0.02)
        names = [subject.name for subject in subjects]
        job = Job(url, str(inbox.folder), str(tmp_path), settings, names, names[number % 2 :: 2], ends)
        return start_driver(Path(stateful_job.__file__), job.to_json(), env=with_tests_on_path())

    for kill in range(KILLS):
        before = published(observer)
        driver = start(kill)
        if kill == 0:
            # Anywhere in the first batches.
            driver.wait_for((tmp_path / "checkpoints").exists, "there was a checkpoint")
            time.sleep(dice.uniform(0, 12))
        else:
            driver.wait_for(lambda seen=before: all_went_on(observer, subjects, seen), "each query went on")
            time.sleep(dice.uniform(0, 3))
        assert reasons(driver) == []
        driver.sigkill(workers=dice.random() < 0.8)
        assert doubled_or_wrong(observer, subjects, ids(inbox)) == {}
    driver = start(KILLS, ends=True)
    assert driver.wait() == 0, reasons(driver)
    for subject in subjects:
        checkpoint = subject.sink(url, tmp_path).checkpoint
        wanted = KINDS[subject.kind].expected(ids(inbox))
        assert wrong_rows(observer, subject.name, wanted) + wrong_ledger(observer, checkpoint) == [], subject.name
        print(f"{subject.name}: {len(wanted)} rows, replays of batches {replays(observer, checkpoint)}")


def chosen(dice):
    """One query of each kind that adds rows, and all that keep an aggregate."""
    of_kind = [[subject for subject in SUBJECTS if subject.kind == kind] for kind in KINDS]
    return [
        subject
        for kind, group in zip(KINDS.values(), of_kind, strict=True)
        for subject in ([dice.choice(group)] if kind.accumulates else group)
    ]


def ids(inbox):
    """The ids of all rows sent."""
    return [row[0] for row in inbox.rows]


def all_went_on(observer, subjects, before):
    """Whether each query has published a batch since."""
    now = published(observer)
    return all(now.get(subject.name, 0) > before.get(subject.name, 0) for subject in subjects)


def doubled_or_wrong(observer, subjects, sent):
    """Rows that are there once too often, or should never be, in the tables whose rows stay as they are."""
    found = {}
    for subject in subjects:
        if KINDS[subject.kind].accumulates:
            stored = observer.execute(f"SELECT * FROM {subject.name}".encode()).fetchall()
            found[subject.name] = Counter(stored) - Counter(KINDS[subject.kind].expected(sent))
    return {name: rows for name, rows in found.items() if rows}
