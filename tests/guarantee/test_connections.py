"""How many connections a query holds: docs/running.md has a budget for each way in, and each figure is counted."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest
from support.fixtures.driver import wait_until
from support.inbox import Inbox, create_events, events
from support.meanwhile import meanwhile
from support.ways_in import WAYS, Sink, of_this_spark

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "running.md"
# The tests' Spark has two cores, so two tasks run at a time, and there are four.
CORES, PARTITIONS = 2, 4
ROW = re.compile(r"\| (?P<way>[^|]+) \| (?P<idle>\d+) \| (?P<most>\d+)(?P<tasks>, and 1 for each task that runs)? \|")
NAMES = {
    "inline": '`format("pgonce")`, inline',
    "received": '`format("pgonce")`, received',
    "staged": '`format("pgonce")`, staged',
    "writer_append": "`PostgresBatchWriter`",
    "function": "`transactional_batch`",
}


def budget(way):
    """What the page says: how many are idle, and how many are open at most while two tasks run at a time."""
    (found,) = [row for row in ROW.finditer(PAGE.read_text()) if row["way"] == NAMES[way]]
    return int(found["idle"]), int(found["most"]) + (CORES if found["tasks"] else 0)


def is_daemon(process):
    """Whether it is Spark's daemon, or one of the workers that it has forked."""
    return "pyspark.daemon" in process.cmdline()


@pytest.fixture
def no_other_query(spark):
    """As in an application with this query alone: earlier tests have left workers, and batches go to them in turn."""
    workers = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if is_daemon(process) and is_daemon(process.parent()):
                process.terminate()
                workers.append(process)
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive


@pytest.mark.usefixtures("no_other_query")
@pytest.mark.parametrize("way", [way for way in of_this_spark(WAYS) if way.name in NAMES], ids=lambda way: way.name)
def test_a_query_holds_as_many_connections_as_the_page_says(
    way, spark, postgres_server, database, url, checkpoint, tmp_path
):
    """While batches run never more, and between batches exactly as many."""
    idle, most = budget(way.name)
    create_events(url, "events", keyed=False)
    inbox = Inbox(tmp_path / "inbox")
    frame = events(spark, inbox.folder).repartition(PARTITIONS)
    with psycopg.connect(postgres_server.url("postgres"), autocommit=True) as connection:

        def sessions():
            asked = (
                "SELECT pid, application_name, left(query, 80) FROM pg_stat_activity "
                "WHERE datname = %s AND backend_type = 'client backend'"
            )
            return connection.execute(asked, [database]).fetchall()

        assert wait_until(lambda: not sessions())
        inbox.add(200)
        # As quickly as Postgres answers.
        with meanwhile(sessions) as counted:
            query = way.append(frame, Sink(url, "events", checkpoint)).start()
            try:
                for _ in range(3):
                    query.processAllAvailable()
                    inbox.add(200)
                query.processAllAvailable()
                time.sleep(1)
                between = counted[-1]
            finally:
                query.stop()
        assert len(between) == idle, between
        assert idle <= max(map(len, counted)) <= most
