"""
A writer looks at its table when it is made, if the database can be reached, and costs nothing if it cannot.

Its settings and those of a transactional function are checked in the same way.
"""

from __future__ import annotations

import time

import pytest
from support.fixtures.postgres import url_with

from pgonce import PostgresBatchWriter, transactional_batch
from pgonce.offsets_store.errors import ConfigurationError, TargetError
from pgonce.sink.foreach_batch.batch_writer import batch_settings_of, span_of_range
from pgonce.sink.options.option import Way
from pgonce.sink.options.position_columns import PositionColumns
from pgonce.sink.options.reading import read


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"table": "orderz"}, "TARGET_MISSING"),
        ({"route": "kind", "tables": {"orders": {}, "orderz": {}}}, "TARGET_MISSING"),
        ({"route": "kind", "tables": {"a": {"table": "orders"}, "b": {"table": "public.orders"}}}, "BAD_OPTION"),
    ],
)
def test_a_table_that_cannot_be_written_into(admin, url, arguments, code):
    """It is refused before the query is started, as its first batch would be; so are two routes into one table."""
    admin.execute("CREATE TABLE orders (id bigint)")
    with pytest.raises((ConfigurationError, TargetError), match=rf"\[{code}\]"):
        PostgresBatchWriter(url, **arguments)


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


def test_position_columns_are_found_however_they_are_written():
    """A list, or a text with commas; none at all means that rows do not say where they come from."""
    columns = PositionColumns("topic", "partition", "offset", written=False)
    for given in (["topic", "partition", "offset"], "topic, partition, offset"):
        settings = batch_settings_of(read({"position_columns": given, "write_positions": False}, Way.WRITER))
        assert settings.positions == columns
    assert batch_settings_of(read({}, Way.WRITER)).positions is None


def test_the_rows_of_a_new_partition_are_looked_for_among_those_that_are_stored():
    """An earlier run may have read the partition already, though the start of this batch does not have it."""
    start, end = {"0": {"t": {"0": 20}}}, {"0": {"t": {"0": 30, "1": 8}}}
    assert span_of_range(start, end).first == {"0": {"t": {"0": 20, "1": 0}}}
    assert span_of_range(None, end).first == {"0": {"t": {"0": 0, "1": 0}}}


@pytest.mark.parametrize(
    "make",
    [
        lambda **wrong: PostgresBatchWriter(table="events", **wrong),
        lambda **wrong: transactional_batch(name="a", **wrong),
    ],
    ids=["writer", "function"],
)
@pytest.mark.parametrize(
    "wrong",
    [
        {"position_columns": ["topic"]},
        {"retain_batches": 1},
        {"lock_timeout": 0},
        {"lock_timeout": float("nan")},
        {"lock_timeout": float("inf")},
        {"adopt_checkpoint": 3, "independent": True},
        {"replaces": "\x00"},
    ],
)
def test_what_cannot_work_is_refused_at_once(make, wrong):
    """Before a query has started."""
    with pytest.raises(ConfigurationError):
        make(**wrong)
