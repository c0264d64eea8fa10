"""A new query's planner knows without SQLAlchemy whether the ledger has anything that concerns it."""

from __future__ import annotations

import psycopg
import pytest
from support.batches import make_planned_batch
from support.routed_rows import TABLES, commit, routed, routes

from pgonce.offsets_store.ledger.feeders import concern_in_tx
from pgonce.offsets_store.postgres.bounds import enter_in_tx
from pgonce.sink.options.destination import destination

CLICKS = destination("clicks")


@pytest.fixture(autouse=True)
def fed(admin, url):
    """Tables of which query ``old`` feeds one, by a sink with a name of its own."""
    admin.execute(TABLES)
    commit(url, make_planned_batch(0, query_id="old"), CLICKS, routed(), "one")


def is_concerned(url, query_id="new", sink_name="another", **tables):
    """Whether the ledger has something about the first batch of this query."""
    with psycopg.connect(url) as connection:
        oids = {f"public.{name}": oid for name, oid in tables.items()}
        enter_in_tx(connection)
        return concern_in_tx(connection, make_planned_batch(0, query_id=query_id).into(sink_name, oids))


def oid_of(admin, table):
    """The table's oid."""
    return admin.execute("SELECT to_regclass(%s)::oid", [table]).fetchone()[0]


def test_a_table_and_a_sink_that_nothing_feeds(url, admin):
    """Whatever else the ledger has: most new queries."""
    assert not is_concerned(url)
    assert not is_concerned(url, orders=oid_of(admin, "orders"), to_be_created=None)


def test_a_table_is_known_by_its_name_and_by_its_oid(url, admin):
    """As in the commit."""
    oid = oid_of(admin, "clicks")
    assert is_concerned(url, clicks=None)
    assert is_concerned(url, visits=oid)
    assert not is_concerned(url, visits=None)


def test_the_name_of_a_sink_counts_and_so_does_the_query_itself(url):
    """The sink may be a function's, and the query may have published by another sink."""
    assert is_concerned(url, sink_name="one")
    assert is_concerned(url, query_id="old")


def test_a_router_counts_for_each_of_its_tables(url, admin):
    """Even for one that it has not written to yet."""
    commit(url, make_planned_batch(0, query_id="router"), routes({"orders": {}}), routed())
    assert is_concerned(url, orders=oid_of(admin, "orders"))
