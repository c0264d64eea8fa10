"""A new query meets every other one that feeds its sink or one of its tables, whatever their sinks are called."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest
from support.batches import make_planned_batch
from support.committed_rows import settings, verdict_or_code
from support.fixtures.postgres import url_at
from support.routed_rows import TABLES, commit, routed, routes
from support.with_rooms import work_into

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.work import AskedSink, NamedSink, Work
from pgonce.offsets_store.errors import RefusedBatch
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.sink.options.destination import destination

BOTH = routes({"orders": {}, "clicks": {}})
CLICKS = destination("clicks")


@pytest.fixture(autouse=True)
def tables(admin):
    """Tables that a router and plain queries share."""
    admin.execute(TABLES)


def first_of(query_id, **changes):
    """Batch 0 of a query; all of them read the same partition, unless it is said otherwise."""
    return make_planned_batch(0, query_id=query_id, **changes)


def reading(partition):
    """What a batch reads that begins with this partition."""
    return {"start": {"0": {"t": {partition: 0}}}, "end": {"0": {"t": {partition: 10}}}}


def refused(url, batch, where, sink_name=None):
    """The error with which a first batch is refused."""
    with pytest.raises(RefusedBatch) as raised:
        commit(url, batch, where, routed(), sink_name)
    assert raised.value.code == "FOREIGN"
    return raised.value


@pytest.mark.parametrize("is_router_first", [True, False])
def test_a_router_and_a_plain_query_meet_on_one_table(url, is_router_first):
    """Whichever was first, the other is refused, and told through which sink the table is fed."""
    first, second = (BOTH, CLICKS) if is_router_first else (CLICKS, BOTH)
    commit(url, first_of("old"), first, routed(("clicks", 1, "a")))
    error = refused(url, first_of("new"), second)
    other = "route:kind" if is_router_first else "public.clicks"
    assert f"query old through sink {other!r}" in error.what
    assert f"sinkName, {other!r}" in error.remedy


def test_looking_for_the_other_queries_of_a_table_waits_for_none_of_its_partitions(url, admin):
    """A lock on a partition belongs to whoever works there: no new query of the table ends that session."""
    admin.execute("CREATE TABLE whole (id bigint, name text, kind text) PARTITION BY RANGE (id)")
    admin.execute("CREATE TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (100)")
    commit(url, first_of("old"), CLICKS, routed())
    waiting = replace(settings(url), lock_timeout=1, retry_timeout=5)
    with psycopg.connect(url, application_name="pgonce another run") as holder:
        holder.execute("LOCK TABLE part IN ACCESS EXCLUSIVE MODE")
        (oid,) = admin.execute("SELECT 'whole'::regclass::oid").fetchone()
        sink = NamedSink("whole", {"public.whole": oid})
        work = Work(lambda _: AskedSink(lambda: sink), lambda *_: Published(0, "function"))
        assert commit_batch(waiting, first_of("new", **reading("7")), work) is Verdict.NEW
        assert holder.execute("SELECT 1").fetchone() == (1,)


def test_other_tables_and_other_rows_are_let_in(url):
    """Only what may be the same rows in the same table is refused."""
    commit(url, first_of("old"), BOTH, routed())
    apart = first_of("other rows", **reading("7"))
    assert commit(url, apart, CLICKS, routed()) is Verdict.NEW
    elsewhere = routes({"kept": {"create_table": True}})
    assert commit(url, first_of("other table"), elsewhere, routed(), "kept") is Verdict.NEW


def test_a_function_is_known_by_the_tables_that_it_has_written(url):
    """Which tables these are is known once it has published."""
    targets = {"public.clicks": 1}
    work = Work(lambda _: "my function", lambda *_: Published(0, "function", targets=targets), sealed=True)
    commit_batch(settings(url), first_of("old"), work)
    assert "through sink 'my function'" in refused(url, first_of("new"), CLICKS).what


def test_one_query_may_feed_a_table_by_two_sinks(url):
    """Its second sink is no rival of its first; and both are replaced, one after the other, by those of a new query."""
    commit(url, first_of("old"), CLICKS, routed(), "one")
    commit(url, first_of("old"), CLICKS, routed(), "two")
    next_one = {"start": {"0": {"t": {"0": 10}}}, "end": {"0": {"t": {"0": 20}}}}
    replacing = settings(url, remedies=Remedies(replaces="old"))
    for sink in ("one", "two"):
        batch = first_of("new", **next_one)
        assert commit_batch(replacing, batch, work_into(sink, CLICKS, routed())) is Verdict.NEW


def test_retired_writers_do_not_count(url, admin):
    """They will publish no more."""
    commit(url, first_of("old"), BOTH, routed())
    admin.execute("UPDATE pgonce.writers SET retired_at = now()")
    assert commit(url, first_of("new"), CLICKS, routed()) is Verdict.NEW


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_two_that_start_together_see_each_other(url, isolation):
    """Under a snapshot, too, one of them is refused, although their sinks have different names."""
    together = threading.Barrier(2)

    def start(query, where):
        together.wait()
        return verdict_or_code(settings(url_at(url, isolation)), first_of(query), work_into(None, where, routed()))

    with ThreadPoolExecutor(2) as pool:
        assert {*pool.map(start, ("one", "two"), (BOTH, CLICKS))} == {"NEW", "FOREIGN"}
