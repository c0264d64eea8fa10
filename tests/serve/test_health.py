"""What /healthz says in one line, for probes."""

from __future__ import annotations

import re

import pytest
from support.dead_letters import put_aside
from support.ledger_history import KAFKA, OTHER, QUERY, fail, hear, publish
from support.served import served


@pytest.fixture
def site(url, store):
    """A query that runs, 10 records behind, and one that fails."""
    publish(url, 3, KAFKA)
    hear(url, {"0": {"t": {"0": 15, "1": 25}}}, batch_id=3)
    publish(url, 7, KAFKA, query_id=OTHER, query_name="payments", sink_name="public.payments")
    fail(url, "GAP", query_id=OTHER, sink_name="public.payments", batch_id=8)
    with served(url) as site:
        yield site


@pytest.mark.parametrize(
    ("asked", "status", "line"),
    [
        ("", 200, "the ledger is read: 2 queries, read AGE ago; 1 critical of 1 findings (pgonce health)"),
        ("query=orders", 200, "ok: orders into public.orders is running, batch 3 AGE ago, lag 10"),
        (f"query={QUERY}&max_age=5m&max_lag=10", 200, "ok: orders"),
        (f"query={QUERY[:8]}&max_lag=9", 503, "lag 10; its lag is 10 records"),
        ("query=orders&max_age=0s", 503, "; its last batch is AGE old"),
        ("query=payments", 503, "ago, lag ?; refused: GAP at batch 8"),
        ("query=orders&sink=public.orders", 200, "ok: orders"),
        ("query=orders&sink=elsewhere", 503, "No query is called 'orders' with sink 'elsewhere'"),
        ("query=nothing", 503, "No query is called 'nothing'"),
        ("query=orders&max_age=soon", 400, "'soon' is not a time span."),
        ("query=orders&max_lag=-1", 400, "'-1' is not a number of records."),
    ],
)
def test_the_line_and_the_status(site, asked, status, line):
    """200 if all is well and 503 if not; what cannot be read is a 400. An age is what the test took."""
    found = site.get(f"/healthz?{asked}")
    assert (found.status, found.text.count("\n")) == (status, 1)
    assert line in re.sub(r"\b\d+s (ago|old)", r"AGE \1", found.text)


def test_what_is_well_and_what_is_not_agree_with_the_findings(url, store, admin):
    """Nothing is called ok of which there is a finding, and a warning alone is no 503."""
    publish(url, 3, KAFKA)
    with served(url) as site:
        assert site.get("/healthz").text.startswith("ok: 1 queries")
        put_aside(admin, {"id": 1})
        site.look()
        process, query = site.get("/healthz"), site.get("/healthz?query=orders")
        assert {one.severity for one in site.reader.snapshot.findings} == {"warning"}
    assert (process.status, query.status) == (200, 200)
    assert "0 critical of 1 findings" in process.text
    assert query.text.startswith("warning: orders into public.orders is running, batch 3")
    assert "dead letters: 1 " in query.text


def test_a_query_with_several_sinks_is_as_well_as_the_worst(url, store, admin):
    """Each sink that may still publish is named with what is wrong; one that was retired has no bounds."""
    publish(url, 3, KAFKA, sink_name="public.old")
    admin.execute("UPDATE pgonce.writers SET updated_at = now() - interval '9 days', retired_at = now()")
    publish(url, 3, KAFKA)
    publish(url, 3, KAFKA, sink_name="public.other")
    with served(url) as site:
        assert site.get("/healthz?query=orders&max_age=5m").status == 200
        fail(url, "GAP", batch_id=4)
        site.look()
        one, other = site.get("/healthz?query=orders&max_age=5m"), site.get("/healthz?query=orders&sink=public.other")
        old = site.get("/healthz?query=orders&sink=public.old&max_age=5m")
    assert (one.status, other.status, old.status) == (503, 200, 503)
    assert re.search(
        r"orders is refused, .*; orders into public\.other is running, .*; refused: GAP at batch 4", one.text
    )
    assert "public.old" not in one.text
    assert "its last batch is 9d old" in old.text


def test_a_name_with_line_breaks_is_one_line(url, store):
    """What a probe's log shows cannot be forged."""
    publish(url, 3, KAFKA, query_name="a\nok: b")
    with served(url) as site:
        assert site.get("/healthz?query=a%0Aok:%20b").text.count("\n") == 1
        assert site.get("/healthz?query=c%0Ad").text.count("\n") == 1
