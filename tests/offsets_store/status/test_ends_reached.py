"""Read your own writes: whether the rows of given Kafka records are in Postgres. In Python, and the same in SQL."""

from __future__ import annotations

import json
import threading
import time

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update
from support.ledger_history import OTHER, QUERY, publish, take_over

from pgonce.offsets_store.errors import ConfigurationError, OffsetsError
from pgonce.offsets_store.ledger.session import writing
from pgonce.offsets_store.ledger.tables import writers
from pgonce.offsets_store.status.ends import parse_records
from pgonce.offsets_store.status.store import OffsetsStore

KAFKA = {"0": {"t": {"0": 10, "1": 20}}}


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
    with pytest.raises(OffsetsError) as refused:
        store.wait_for("orders", {"t": {"0": 9}}, 0, sink="public.totals")
    assert refused.value.code == "SINK_NOT_FOUND"
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
    with pytest.raises(OffsetsError) as refused:
        store.wait_for("orders", {"t": {"0": 9}}, 0)
    assert refused.value.code == "WRITER_GONE"
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
    with pytest.raises(ConfigurationError) as refused:
        store.wait_for("orders", {"t": {0: 1}}, float("nan"))
    assert refused.value.code == "BAD_OPTION"


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
def test_python_and_sql_agree(url, store, first, second, asked):
    """Whatever two sinks of a query hold, the function in SQL and the method in Python give one answer."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("TRUNCATE pgonce.writers CASCADE")
    for sink, sources in (("a", first), ("b", second)):
        publish(url, 0, {str(number): source for number, source in enumerate(sources)}, sink_name=sink)
    both(url, asked)
