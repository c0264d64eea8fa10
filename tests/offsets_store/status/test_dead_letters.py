"""Which rows were put aside is told by query, sink, code and id, from the ledger's table or from the user's own."""

from __future__ import annotations

import pytest
from support.dead_letters import a_past, put_aside
from support.ledger_history import OTHER

from pgonce.offsets_store.status.store import OffsetsStore


@pytest.fixture
def admin(url, admin):
    """A connection that may do anything; a query has published a batch."""
    a_past(url)
    return admin


def found(url, *which, **more):
    """The ids that the store finds."""
    return [letter.dead_letter_id for letter in OffsetsStore(url).dead_letters(*which, **more)]


def test_the_newest_of_a_query(url, admin):
    """The newest come first; those of another query are not among them."""
    a_past(url, query_id=OTHER, query_name="others")
    put_aside(admin, {"id": 1}, query_id=OTHER)
    ids = [put_aside(admin, {"id": number}) for number in range(3)]
    assert found(url, "orders") == ids[::-1]
    assert found(url, "orders", limit=2) == ids[:0:-1]


def test_by_sink_code_and_id(url, admin):
    """Each narrows the choice, and together they do too."""
    a_past(url, sink_name="public.lines")
    one = put_aside(admin, {"id": 1}, code="23514")
    two = put_aside(admin, {"id": 2}, sink_name="public.lines")
    three = put_aside(admin, {"id": 3}, sink_name="public.lines", code="23514")
    assert found(url, "orders", "public.lines") == [three, two]
    assert found(url, "orders", code="23514") == [three, one]
    assert found(url, "orders", "public.lines", code="23514") == [three]
    assert found(url, "orders", ids=[one, two], code="23514") == [one]


def test_every_digit_of_a_row_is_there(url, admin):
    """A decimal with more digits than a float has is not rounded."""
    put_aside(admin, {}, row_data='{"n": 99999999999999999999.123456789012345678}')
    (letter,) = OffsetsStore(url).dead_letters("orders")
    assert letter.row_data == '{"n": 99999999999999999999.123456789012345678}'
    assert (letter.target, letter.batch_id, letter.code) == ("public.events", 3, "22001")
    assert letter.position == {"topic": "t", "partition": 0, "offset": 7}
