"""
The command ``pgonce check --query`` looks at a query's tables as its next commit will.

Covers: offsets_store.status.read_stored.
"""

from __future__ import annotations

import json

import pytest
from pyspark.sql import types as t
from support.ledger_history import QUERY
from support.published_query import publish
from support.routed_rows import routed, routes
from support.typed_rows import typed_rows
from typer.testing import CliRunner

from pgonce.cli.main import app
from pgonce.offsets_store.ledger.migrations import ensure_ledger, grants
from pgonce.sink.options.destination import destination


@pytest.fixture
def check(url, admin):
    """What the command finds about the tables of a query, as (holds, says), for a table that is there."""
    ensure_ledger(url)
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text)")

    def ask(query, *more):
        shown = CliRunner().invoke(app, ["check", "--url", url, "--json", "--query", query, *more])
        return [(one["holds"], one["says"]) for one in json.loads(shown.stdout) if one["name"] == "table"]

    return ask


def test_a_table_that_takes_the_next_batch(url, check):
    """The answer says with which columns, and what was not tried."""
    publish(url, destination("events", "upsert"))
    ((holds, says),) = check("orders")
    assert holds == "holds"
    takes = "public.events: it can take rows with the columns of batch 0"
    assert says == f"{takes}; functions and triggers were not tried"
    assert check("orders", "--table", "events") == check("orders", "--table", "public.events") == [(holds, says)]
    assert check("orders", "--table", "others") == [("not known", "query orders has recorded no batch into others")]


def test_a_table_that_was_made_again(url, admin, check):
    """Rows of earlier batches are not in it, and a query that pins its table would be refused."""
    publish(url, destination("events"))
    admin.execute("DROP TABLE events; CREATE TABLE events (id bigint PRIMARY KEY, name text)")
    ((holds, says),) = check("orders")
    assert (holds, "public.events is not the table" in says) == ("holds", True)
    assert "With pinTable, the next batch is refused; " in says


def test_a_table_that_the_next_batch_would_create(url, admin, check):
    """Then it has nothing of the earlier batches."""
    publish(url, destination("events", create_table=True))
    admin.execute("ALTER TABLE events RENAME TO older")
    ((holds, says),) = check("orders")
    created = "public.events: it is not there, and the next batch creates it, without the rows"
    assert (holds, created in says) == ("holds", True)


@pytest.mark.parametrize(
    ("ddl", "code"),
    [
        ("ALTER TABLE events RENAME name TO title", "COLUMN_UNKNOWN"),
        ("ALTER TABLE events SET UNLOGGED", "TARGET_NOT_DURABLE"),
    ],
)
def test_a_table_that_refuses_it(url, admin, check, ddl, code):
    """What would stop the next batch is said, with the code of its error."""
    publish(url, destination("events"))
    admin.execute(ddl)
    ((holds, says),) = check(QUERY)
    assert (holds, says.startswith(f"public.events: {code}, ")) == ("does not hold", True)


def test_what_changes_is_recorded_again(url, admin, check):
    """Each batch leaves the record as its own columns are; one that changes nothing about it does not write it."""
    publish(url, destination("events"))
    written = "SELECT xmin::text, written_as FROM pgonce.writers"
    first = admin.execute(written).fetchone()[1]
    publish(url, destination("events"), 1)
    assert admin.execute(written).fetchone()[1] == first
    publish(url, destination("events"), 2, typed_rows({"id": t.LongType()}, [(2,)]))
    second = admin.execute(written).fetchone()[1]
    assert second["digest"] != first["digest"]
    assert [column["name"] for column in second["tables"]["public.events"]["columns"]] == ["id"]
    ((_, says),) = check("orders")
    assert "with the columns of batch 2" in says


def test_each_table_of_a_route(url, admin, check):
    """Those that got no rows in the last batch are looked at as well."""
    admin.execute("CREATE TABLE orders (id bigint, name text); CREATE TABLE clicks (id bigint, name text)")
    where = routes({"orders": {"columns": ["id", "name"]}, "clicks": {"columns": ["id", "name"]}})
    publish(url, where, rows=routed(("orders", 1, "a")))
    admin.execute("ALTER TABLE clicks DROP name")
    (clicks, orders) = check("orders")
    assert (clicks[0], clicks[1].startswith("public.clicks: COLUMN_UNKNOWN, ")) == ("does not hold", True)
    assert (orders[0], orders[1].startswith("public.orders: it can take rows")) == ("holds", True)


def test_a_query_without_a_record_of_its_writing(url, admin, check):
    """A query whose batches have left no record is not called healthy without a word."""
    publish(url, destination("events"))
    admin.execute("UPDATE pgonce.writers SET written_as = NULL")
    says = "public.events was not checked: no batch has recorded how its rows were written"
    assert check("orders") == [("not known", says)]


def test_a_record_that_cannot_be_read(url, admin, check):
    """Nothing of it is used, and the table is not called fit."""
    publish(url, destination("events"))
    admin.execute("UPDATE pgonce.writers SET written_as = jsonb_set(written_as, '{tables,public.events}', '7')")
    ((holds, says),) = check("orders")
    assert (holds, says.startswith("public.events was not checked: ")) == ("not known", True)


def test_a_query_without_a_living_sink(url, admin, check):
    """Of a retired sink, nothing is known about a next batch."""
    publish(url, destination("events"))
    admin.execute("UPDATE pgonce.writers SET retired_at = now()")
    assert check(QUERY) == [("not known", f"query {QUERY} has recorded no batch")]


def test_privileges_of_the_role(url, admin, check, login):
    """The command runs under the query's role, so what the role lacks is found."""
    publish(url, destination("events", "complete"))
    admin.execute("; ".join(grants(login.user)).encode())
    admin.execute(f"GRANT INSERT, SELECT ON events TO {login.user}")
    shown = CliRunner().invoke(app, ["check", "--url", login.url, "--json", "--query", "orders"])
    (table,) = (one for one in json.loads(shown.stdout) if one["name"] == "table")
    assert table["holds"] == "does not hold"
    assert table["remedy"].startswith("GRANT DELETE ON")
