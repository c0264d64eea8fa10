"""A writer looks at its table when it is made, if the database can be reached, and costs nothing if it cannot."""

from __future__ import annotations

import time

import pytest
from support.fixtures.postgres import url_with

from pgonce import PostgresBatchWriter
from pgonce.offsets_store.errors import ConfigurationError, TargetError


@pytest.mark.parametrize(
    ("ddl", "arguments", "code"),
    [
        ("CREATE TABLE orders (id bigint)", {"table": "orderz"}, "TARGET_MISSING"),
        ("CREATE VIEW orders AS SELECT 1 AS id", {"table": "orders"}, "TARGET_NOT_A_TABLE"),
        ("CREATE UNLOGGED TABLE orders (id bigint)", {"table": "orders"}, "TARGET_NOT_DURABLE"),
        ("SELECT", {"table": "sales.orders", "create_table": True}, "SCHEMA_MISSING"),
        ("CREATE TABLE orders (id bigint)", {"table": "orders", "dead_letters": "letterz"}, "DEAD_LETTERS_MISSING"),
        (
            "CREATE TABLE orders (id bigint)",
            {"route": "kind", "tables": {"orders": {}, "orderz": {}}},
            "TARGET_MISSING",
        ),
    ],
)
def test_a_table_that_cannot_be_written_into(admin, url, ddl, arguments, code):
    """It is refused before the query is started, as its first batch would be."""
    admin.execute(ddl)
    with pytest.raises(TargetError, match=rf"\[{code}\]"):
        PostgresBatchWriter(url, **arguments)


def test_two_routes_into_one_table(admin, url):
    """That is known without a row, too."""
    admin.execute("CREATE TABLE orders (id bigint)")
    with pytest.raises(ConfigurationError, match=r"\[BAD_ROUTES\]"):
        PostgresBatchWriter(url, route="kind", tables={"a": {"table": "orders"}, "b": {"table": "public.orders"}})


def test_a_table_that_is_there_or_will_be_created(admin, url):
    """Nothing is created by looking, and no session stays."""
    PostgresBatchWriter(url_with(url, application_name="made"), table="orders", create_table=True)
    assert admin.execute("SELECT to_regclass('orders')").fetchone() == (None,)
    admin.execute("CREATE TABLE orders (id bigint)")
    PostgresBatchWriter(url, table="orders")


def test_a_database_that_cannot_be_reached(url, login):
    """It is left to the first batch, soon; so is a login that is refused."""
    began = time.monotonic()
    PostgresBatchWriter("postgresql://nobody@127.0.0.1:1/nowhere", table="orderz")
    PostgresBatchWriter(login.url.replace(login.user, "nobody_of_this_name"), table="orderz")
    assert time.monotonic() - began < 30


def test_a_client_of_a_connect_server_does_not_look(url):
    """The function runs in the server, for which the url may mean another database."""
    PostgresBatchWriter(url, table="orderz", checkpoint_location="/checkpoints/orders")
