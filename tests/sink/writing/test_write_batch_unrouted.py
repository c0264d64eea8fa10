"""Rows that cannot be written are put aside for the table that their route chooses; the others are in their tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.bad_rows import unfit_row
from support.batches import make_planned_batch
from support.routed_rows import TABLES, commit, routed, routes

from pgonce.offsets_store.errors import TargetError

BOTH = {"orders": {"mode": "upsert"}, "clicks": {}}


@pytest.fixture(autouse=True)
def tables(admin):
    """The tables, one of which takes short names only."""
    admin.execute(TABLES)
    admin.execute(b"ALTER TABLE clicks ALTER name TYPE varchar(3)")


def unfit(*kinds):
    """Rows that could not be encoded, of these routes."""
    return tuple(unfit_row(kind=kind, id=9) for kind in kinds)


def test_a_row_that_could_not_be_encoded_is_put_aside_for_its_table(admin, url):
    """If its route is not in the list, it is one of the sink, and nothing says how it was to be written."""
    rows = replace(routed(("orders", 1, "a")), unfit=lambda: unfit("clicks", "taxes", None))
    commit(url, make_planned_batch(0), routes(BOTH, dead_letters=True), rows)
    letters = "SELECT target, destination = '{}' FROM pgonce.dead_letters ORDER BY target, 2"
    assert admin.execute(letters).fetchall() == [("public.clicks", False), ("route:kind", True), ("route:kind", True)]
    assert admin.execute("SELECT rows, counts FROM pgonce.batches").fetchone() == (1, {"written": 1, "dead_letters": 3})


def test_the_bad_rows_of_all_tables_are_counted_together(admin, url):
    """One in each of two tables is more than one a batch, and then no table has a row of it."""
    admin.execute(b"ALTER TABLE orders ALTER name TYPE varchar(3)")
    rows = routed(("orders", 1, "a"), ("orders", 2, "long"), ("clicks", 1, "a"), ("clicks", 2, "long"))
    with pytest.raises(TargetError, match="TOO_MANY_DEAD_LETTERS"):
        commit(url, make_planned_batch(0), routes(BOTH, dead_letters=True, max_dead_letters=1), rows)
    assert admin.execute("SELECT id FROM orders UNION ALL SELECT id FROM clicks").fetchall() == []


def test_a_batch_of_which_no_row_could_be_encoded_is_refused(admin, url):
    """No table gets a row, and this is no fault of single rows."""
    rows = replace(routed(), unfit=lambda: unfit("orders", "orders"))
    with pytest.raises(TargetError, match="ALL_ROWS_REFUSED"):
        commit(url, make_planned_batch(0), routes(BOTH, dead_letters=True), rows)
    assert admin.execute("SELECT count(*) FROM pgonce.dead_letters").fetchone() == (0,)


def test_rows_of_unknown_routes_alone_are_put_aside(admin, url):
    """The user asked for that, so it is no fault of the tables that they get no row."""
    where = routes(BOTH, unknown_routes="deadLetters", dead_letters=True)
    commit(url, make_planned_batch(0), where, routed(("taxes", 1, "a"), (None, 2, "b")))
    assert admin.execute("SELECT rows, counts FROM pgonce.batches").fetchone() == (0, {"dead_letters": 2})
    assert admin.execute("SELECT code FROM pgonce.dead_letters").fetchall() == [("ROUTE_UNKNOWN",)] * 2


def test_a_table_that_takes_deadletters_back_refuses_a_row_that_could_not_be_encoded(admin, url):
    """The batch stops with the row's own error, as it does for a row that Postgres refuses."""
    where = routes({"orders": {}, "clicks": {"deadLetters": False}}, dead_letters=True)
    rows = replace(routed(("orders", 1, "a")), unfit=lambda: unfit("orders", "clicks"))
    with pytest.raises(TargetError, match="NUL_IN_TEXT.*'clicks'"):
        commit(url, make_planned_batch(0), where, rows)
    assert admin.execute("SELECT count(*) FROM pgonce.dead_letters").fetchone() == (0,)


def test_only_a_table_that_asks_for_dead_letters_has_them(admin, url):
    """Rows of unknown routes need those of the stream."""
    where = routes({"orders": {}, "clicks": {"deadLetters": True}})
    rows = replace(routed(("orders", 1, "a")), unfit=lambda: unfit("clicks"))
    commit(url, make_planned_batch(0), where, rows)
    assert admin.execute("SELECT target FROM pgonce.dead_letters").fetchall() == [("public.clicks",)]
    with pytest.raises(TargetError, match="NUL_IN_TEXT"):
        commit(url, make_planned_batch(1), where, replace(rows, unfit=lambda: unfit("taxes")))


@pytest.mark.parametrize("letters", [{}, {"dead_letters": True, "max_dead_letters": 1}])
def test_a_row_to_be_left_out_is_left_out_though_it_could_not_be_encoded(admin, url, letters):
    """It is counted with the others of unknown routes, and no dead letter; one whose route is unknown for that is."""
    where = routes(BOTH, unknown_routes="drop", **letters)
    rows = replace(routed(("orders", 1, "a"), ("taxes", 2, "b")), unfit=lambda: unfit("taxes", "taxes", None))
    commit(url, make_planned_batch(0), where, rows)
    assert admin.execute("SELECT rows, counts FROM pgonce.batches").fetchone() == (1, {"written": 1, "unrouted": 4})
    unreadable = replace(rows, unfit=lambda: (unfit_row(kind={"base64": "AA=="}, id=9),))
    if letters:
        commit(url, make_planned_batch(1), where, unreadable)
        assert admin.execute("SELECT count(*) FROM pgonce.dead_letters").fetchone() == (1,)
    else:
        with pytest.raises(TargetError, match="NUL_IN_TEXT"):
            commit(url, make_planned_batch(1), where, unreadable)
