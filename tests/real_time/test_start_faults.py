"""
The line to Postgres breaks under tasks in real-time and continuous mode: no answer that is lost loses or doubles a row.

Covers: pgonce.real_time.java_writer.
"""

from __future__ import annotations

import re
import time

import pytest
from support.fixtures.postgres import url_with
from support.real_time_job import rows, source_of

import pgonce

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

TRIGGERS = {"real-time": {"real_time": "5 seconds"}, "continuous": {"continuous": "1 second"}}
_FLUSH = re.compile(rb"moved AS")


@pytest.fixture
def start(spark, kafka, admin, proxy, tmp_path):
    """Start a query over a topic, whose tasks reach Postgres through the proxy."""
    admin.execute('CREATE TABLE numbers (id bigint, topic text, partition int, "offset" bigint)')
    proxy.also_commits = _FLUSH
    return lambda topic, trigger: pgonce.start_real_time(
        spark,
        kafka=source_of(kafka.bootstrap_servers, topic),
        rows=rows,
        url=url_with(proxy.url, tcp_user_timeout=2000),
        table="numbers",
        checkpoint_location=str(tmp_path / "query"),
        lock_timeout=2,
        retry_timeout=60,
        **TRIGGERS[trigger],
    )


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_flushes_whose_answers_are_lost(trigger, start, topic, producing, proxy, observer):
    """Before, while and after the server has written a flush the line is cut, and everything is refused for a while."""
    name = topic(1)
    end = producing(name)
    query = start(name, trigger)

    def count():
        return observer.execute("SELECT count(*) FROM numbers").fetchone()[0]

    def until(condition, what):
        deadline = time.monotonic() + 120
        while not condition():
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, what
            time.sleep(0.02)

    until(lambda: count() > 50, "first rows")
    for cut in (proxy.cut_before_commit, proxy.cut_during_commit, proxy.cut_after_commit) * 3:
        cut("moved AS")
        struck = sum(proxy.hits.values())
        until(lambda struck=struck: sum(proxy.hits.values()) > struck, f"{cut.__name__} struck")
        before = count()
        until(lambda before=before: count() > before + 20, f"rows after {cut.__name__}")
    proxy.stop()
    time.sleep(2)
    proxy.start()
    with proxy.black_hole():
        time.sleep(6)
    before = count()
    until(lambda: count() > before + 20, "rows after a black hole")
    sent = end()
    until(lambda: count() >= sent, "all rows")
    assert observer.execute("SELECT count(*), count(DISTINCT id) FROM numbers").fetchone() == (sent, sent)
    assert [proxy.hits[f"cut_{when}_commit"] for when in ("before", "during", "after")] == [3, 3, 3]
    query.stop()
