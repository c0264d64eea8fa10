"""What went wrong is told across queries."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from support.ledger_history import QUERY, publish

from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.failures import Failed, keep_failure


def test_by_time_and_query(store, url, admin):
    """The newest come first, across queries; by a time, and by a query's name, id or the beginning of its id."""
    for query, name in ((QUERY, "orders"), ("22222222-2222", "clicks")):
        keep_failure(url, Failed(seen_by="commit", query_id=query, query_name=name), "LOCKED", "held")
    admin.execute("UPDATE pgonce.failures SET last_at = last_at - interval '2 hours' WHERE query_name = 'orders'")
    assert [failure.query_name for failure in store.failures()] == ["clicks", "orders"]
    assert all(a.last_at > b.last_at for a, b in pairwise(store.failures()))
    an_hour_ago = datetime.now().astimezone() - timedelta(hours=1)
    assert [failure.query_name for failure in store.failures(since=an_hour_ago)] == ["clicks"]
    assert [failure.query_name for failure in store.failures(query=QUERY[:8])] == ["orders"]


def test_a_query_without_failures(store, url):
    """It has none; a query that nobody knows is an error."""
    publish(url, 0, {"0": 1})
    assert store.failures(query="orders") == []
    with pytest.raises(PgonceError, match="QUERY_NOT_FOUND"):
        store.failures(query="orderz")
