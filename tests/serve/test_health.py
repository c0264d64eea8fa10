"""What /healthz says in one line, for probes."""

from __future__ import annotations

import re

import pytest
from support.ledger_history import KAFKA, OTHER, fail, publish
from support.served import served


@pytest.fixture
def site(url, store):
    """A query that runs, and one that fails."""
    publish(url, 3, KAFKA)
    publish(url, 7, KAFKA, query_id=OTHER, query_name="payments", sink_name="public.payments")
    fail(url, "GAP", query_id=OTHER, sink_name="public.payments", batch_id=8)
    with served(url) as site:
        yield site


def test_the_ledger_is_read_and_what_was_found_is_counted(site):
    """It is no 503 that a query needs attention: what restarts the page would not help the query."""
    found = site.get("/healthz")
    assert (found.status, found.text.count("\n")) == (200, 1)
    said = re.sub(r"\b\d+s ago", "AGE ago", found.text).strip()
    assert said == "the ledger is read: 2 queries, read AGE ago; 1 critical of 1 findings (pgonce health)"


def test_one_query_is_judged_by_the_command(site):
    """A probe that asks for a query is told that this answers for none, and never that all is well."""
    found = site.get("/healthz?query=orders&max_age=5m")
    assert found.status == 400
    assert "`pgonce health QUERY`" in found.text


def test_all_is_well_without_findings(url, store):
    """Nothing is called ok of which there is a finding."""
    publish(url, 3, KAFKA)
    with served(url) as site:
        assert site.get("/healthz").text.startswith("ok: 1 queries")
