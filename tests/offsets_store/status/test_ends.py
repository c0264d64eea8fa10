"""How far a query is behind its sources, and where a new checkpoint starts, so that it goes on there."""

from __future__ import annotations

import json
import threading
import time
from datetime import datetime, timedelta

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update
from support.ledger_history import KAFKA, OTHER, QUERY, hear, heard_at, publish, take_over

from pgonce.offsets_store.errors import ConfigurationError, OffsetsError
from pgonce.offsets_store.ledger.session import writing
from pgonce.offsets_store.ledger.tables import writers
from pgonce.offsets_store.status.ends import parse_records, total_lag
from pgonce.offsets_store.status.store import OffsetsStore


class TestLag:
    def test_without_progress_it_is_unknown(self, url, store):
        """Nobody told the newest offsets: the lag is None, not 0."""
        publish(url, 0, KAFKA)
        ((_, rows),) = store.status_of("orders")
        assert [(row.topic, row.partition, row.end_offset, row.lag) for row in rows] == [
            ("t", 0, 10, None),
            ("t", 1, 20, None),
        ]
        assert total_lag(rows) is None

    def test_from_the_newest_progress_event(self, url, store):
        """The lag is the newest event's latest offsets minus the stored end."""
        publish(url, 0, KAFKA)
        hear(url, {"0": {"t": {"0": 13, "1": 20}}}, batch_id=0, seconds=5)
        hear(url, {"0": {"t": {"0": 11, "1": 20}}}, batch_id=9, seconds=1)
        ((_, rows),) = store.status_of("orders")
        assert [row.lag for row in rows] == [3, 0]
        assert {row.measured_at for row in rows} == {heard_at(url) + timedelta(seconds=5)}
        assert total_lag(rows) == 3

    def test_what_was_measured_long_ago_is_not_the_lag_of_now(self, url, store, pgonce):
        """Nobody has looked since: it is unknown, and people see what it was, and when."""
        publish(url, 0, KAFKA)
        hear(url, {"0": {"t": {"0": 15, "1": 22}}}, seconds=-3600)
        ((_, rows),) = store.status_of("orders")
        assert [(row.lag, row.latest_offset) for row in rows] == [(None, 15), (None, 22)]
        assert {row.measured_at for row in rows} == {heard_at(url) - timedelta(hours=1)}
        assert total_lag(rows) is None
        (writer,) = json.loads(pgonce("status", "--json").stdout)
        assert (writer["lag"], writer["last_lag"]) == (None, 7)
        assert datetime.fromisoformat(writer["lag_measured_at"]) == heard_at(url) - timedelta(hours=1)
        shown = pgonce("status", "orders").stdout
        assert "? (was 7 records at " in shown
        assert "15    ?" in shown


class TestStartingOffsets:
    def test_two_sources_that_read_one_topic(self, url, store):
        """Each has a lag, and the total counts a partition once, at the end that is further behind."""
        publish(url, 0, {"0": {"t": {"0": 10}}, "1": {"t": {"0": 12}}})
        hear(url, {"0": {"t": {"0": 13}}, "1": {"t": {"0": 13}}})
        ((_, rows),) = store.status_of("orders")
        assert [row.lag for row in rows] == [3, 1]
        assert total_lag(rows) == 3

    def test_stored_ends_of_one_kafka_source_are_its_starting_offsets(self, url, store):
        """The stored ends of one Kafka source are Kafka's startingOffsets as they stand."""
        publish(url, 0, {"0": {"t": {"0": 10, "2": 0, "10": 5}, "u": {"0": 1}}})
        assert store.starting_offsets("orders") == '{"t": {"0": 10, "2": 0, "10": 5}, "u": {"0": 1}}'

    def test_what_cannot_be_continued(self, url, store):
        """Anything but one Kafka source with known offsets is refused, with the reason."""
        for end, code in [
            ({"0": {"logOffset": 3}}, "NO_STARTING_OFFSETS"),
            ({"0": None}, "NO_STARTING_OFFSETS"),
            ({"0": {"t": {"0": 1}}, "1": {"u": {"0": 1}}}, "NO_STARTING_OFFSETS"),
            ({"0": {"t": {"0": 1}}, "1": 3}, "NO_STARTING_OFFSETS"),
            (None, "OFFSETS_UNKNOWN"),
        ]:
            publish(url, 0, end, sink_name=f"sink {end}")
            with pytest.raises(OffsetsError, match=rf"\[{code}\]"):
                store.starting_offsets("orders", sink=f"sink {end}")

    def test_a_source_that_the_plan_reads_twice(self, url, store):
        """A union of two branches of one stream has its end twice, and one place to start."""
        publish(url, 0, {**KAFKA, "1": KAFKA["0"]})
        assert json.loads(store.starting_offsets("orders")) == KAFKA["0"]

    def test_sinks_at_one_place_are_one(self, url, store):
        """Two sinks that stand at the same offsets need no `sink`."""
        publish(url, 0, KAFKA)
        publish(url, 0, KAFKA, sink_name="audit")
        assert json.loads(store.starting_offsets("orders")) == KAFKA["0"]


def in_sql(url, query, offsets, timeout="0 s", sink=None):
    """What the function in the database answers."""
    with psycopg.connect(url, autocommit=True) as connection:
        asked = [query, json.dumps(offsets), timeout, sink]
        row = connection.execute("SELECT pgonce.wait_for(%s, %s::jsonb, %s::interval, %s)", asked).fetchone()
    return row[0]


def both(url, offsets, sink=None):
    """What Python says, which is what SQL says."""
    found = OffsetsStore(url).wait_for("orders", offsets, 0, sink)
    assert in_sql(url, "orders", offsets, sink=sink) is found
    return found


def test_a_record_is_in_if_the_end_is_after_it(url, store):
    """The end is the next offset to read, so a record is in once the end is greater than its offset."""
    publish(url, 0, KAFKA)
    are_in = [{"t": {"0": 9}}, {"t": {"0": 9, "1": 19}}, {"t": {}}, {}]
    are_not = [{"t": {"0": 10}}, {"t": {"0": 9, "1": 20}}, {"u": {"0": 0}}, {"t": {"7": 0}}]
    assert [both(url, offsets) for offsets in are_in] == [True] * 4
    assert [both(url, offsets) for offsets in are_not] == [False] * 4


def test_every_sink_has_to_hold_it(url, store):
    """Of several sinks all must hold the rows, unless one is named; an unknown end holds nothing."""
    publish(url, 0, KAFKA)
    publish(url, 0, {"0": {"t": {"0": 5}}}, sink_name="public.totals")
    assert not both(url, {"t": {"0": 9}})
    assert both(url, {"t": {"0": 9}}, sink="public.orders")
    assert both(url, {"t": {"0": 4}})
    assert not both(url, {"t": {"1": 4}})
    publish(url, 0, None, sink_name="public.unknown")
    assert not both(url, {"t": {"0": 4}})
    with writing(url) as connection:
        connection.execute(update(writers).values(retired_at="now").where(writers.c.sink_name == "public.unknown"))
    assert both(url, {"t": {"0": 4}})


def test_a_sink_that_has_not_committed_yet(url, store):
    """Nobody knows of it, so it is not waited for; by its name that is an error, and not a true answer."""
    publish(url, 0, KAFKA)
    assert both(url, {"t": {"0": 9}})
    with pytest.raises(OffsetsError, match=r"\[SINK_NOT_FOUND\]"):
        store.wait_for("orders", {"t": {"0": 9}}, 0, sink="public.totals")
    with pytest.raises(psycopg.errors.NoDataFound):
        in_sql(url, "orders", {"t": {"0": 9}}, sink="public.totals")
    publish(url, 0, {"0": {"t": {"0": 5}}}, sink_name="public.totals")
    assert not both(url, {"t": {"0": 9}})


def test_a_topic_that_two_sources_read(url, store):
    """Both sources have to be past the record."""
    publish(url, 0, {"0": {"t": {"0": 10}}, "1": {"t": {"0": 8}}, "2": {"logOffset": 4}, "3": 7})
    assert both(url, {"t": {"0": 7}})
    assert not both(url, {"t": {"0": 8}})


def test_a_query_that_was_replaced(url, store):
    """By name the new query is meant; by the old one's id one is told of the new one, or that there is none."""
    publish(url, 0, KAFKA)
    take_over(url, publish(url, 0, {"0": {"t": {"0": 15}}}, query_id=OTHER, start=KAFKA), QUERY)
    assert both(url, {"t": {"0": 14}})
    with pytest.raises(OffsetsError, match=OTHER) as refused:
        store.wait_for(QUERY, {"t": {"0": 9}}, 0)
    assert refused.value.code == "WRITER_GONE"
    with pytest.raises(psycopg.errors.NoDataFound):
        in_sql(url, QUERY, {"t": {"0": 9}})


def test_a_query_whose_sinks_are_all_retired(url, store):
    """It will hold no more than it does, so waiting for it is refused."""
    publish(url, 0, KAFKA)
    with writing(url) as connection:
        connection.execute(update(writers).values(retired_at="now"))
    with pytest.raises(OffsetsError, match=r"\[WRITER_GONE\]"):
        store.wait_for("orders", {"t": {"0": 9}}, 0)
    with pytest.raises(psycopg.errors.NoDataFound):
        in_sql(url, "orders", {"t": {"0": 9}})


def test_unknown_and_ambiguous_names(url, store):
    """A name that nobody has, or several queries have, is an error at once, and not a wait."""
    publish(url, 0, KAFKA)
    publish(url, 0, KAFKA, query_id=OTHER, sink_name="other")
    with pytest.raises(OffsetsError, match="QUERY_AMBIGUOUS"):
        store.wait_for("orders", {}, 60)
    with pytest.raises(OffsetsError, match="QUERY_NOT_FOUND"):
        store.wait_for("nobody", {}, 60)
    for name in ("orders", "nobody"):
        with pytest.raises(psycopg.errors.NoDataFound):
            in_sql(url, name, {}, "60 s")


@pytest.mark.parametrize("way", ["python", "sql"])
def test_a_commit_ends_the_wait(url, store, way):
    """A batch that is committed during the wait ends it, soon; one that is not in time is a false answer."""
    publish(url, 0, KAFKA)
    later = threading.Timer(0.5, lambda: publish(url, 1, {"0": {"t": {"0": 30, "1": 20}}}, start=KAFKA))
    began = time.monotonic()
    later.start()
    if way == "python":
        found = store.wait_for("orders", {"t": {0: 29}}, timeout=60)
    else:
        found = in_sql(url, "orders", {"t": {"0": 29}}, "60 s")
    assert found
    assert 0.5 <= time.monotonic() - began < 10
    later.join()
    began = time.monotonic()
    assert not (
        store.wait_for("orders", {"t": {0: 30}}, 0.3)
        if way == "python"
        else in_sql(url, "orders", {"t": {"0": 30}}, "300 ms")
    )
    assert 0.3 <= time.monotonic() - began < 5


def test_a_line_that_is_lost_during_the_wait(url, store, proxy):
    """A connection that is lost is made again, and the wait goes on until the rows are in."""
    publish(url, 0, KAFKA)
    later = [
        threading.Timer(0.5, proxy.stop),
        threading.Timer(1, lambda: publish(url, 1, {"0": {"t": {"0": 30, "1": 20}}}, start=KAFKA)),
        threading.Timer(1.5, proxy.start),
    ]
    for timer in later:
        timer.start()
    began = time.monotonic()
    assert OffsetsStore(proxy.url).wait_for("orders", {"t": {0: 29}}, timeout=60)
    assert 1.5 <= time.monotonic() - began < 20
    for timer in later:
        timer.join()


@pytest.mark.parametrize("offsets", [{"t": 3}, {"t": {"x": 1}}, {"t": {0: -1}}, {"t": {0: "1"}}, {"t": {0: True}}, [3]])
def test_other_forms_are_refused(offsets):
    """What is not topic to partition to offset is refused, with an example."""
    with pytest.raises(ConfigurationError, match=r"\{0: 41\}") as refused:
        parse_records(offsets)
    assert refused.value.code == "BAD_OPTION"


def test_a_timeout_that_is_not_a_number(store):
    """It would never be over."""
    with pytest.raises(ConfigurationError, match=r"\[BAD_OPTION\]"):
        store.wait_for("orders", {"t": {0: 1}}, float("nan"))


def ends():
    """Ends of a Kafka source that reads a few partitions."""
    parts = st.dictionaries(st.sampled_from(["0", "1"]), st.integers(0, 3), min_size=1)
    return st.dictionaries(st.sampled_from(["t", "u"]), parts, min_size=1)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    first=st.lists(ends(), min_size=1, max_size=2),
    second=st.lists(ends(), min_size=1, max_size=2),
    asked=st.dictionaries(st.sampled_from(["t", "u"]), st.dictionaries(st.sampled_from(["0", "1"]), st.integers(0, 3))),
)
def test_python_and_sql_agree(url, admin, store, first, second, asked):
    """Whatever two sinks of a query hold, the function in SQL and the method in Python give one answer."""
    admin.execute("TRUNCATE pgonce.writers CASCADE")
    for sink, sources in (("a", first), ("b", second)):
        publish(url, 0, {str(number): source for number, source in enumerate(sources)}, sink_name=sink)
    both(url, asked)
