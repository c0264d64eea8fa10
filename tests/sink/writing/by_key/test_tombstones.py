"""A delete is remembered by the same key and order, whatever the session's settings and the frame's types are."""

from __future__ import annotations

from datetime import date, datetime, timezone

import psycopg
import pytest
from pyspark.sql import types as t
from support.applied_changes import DELETE, WRITE, apply, changes
from support.fixtures.postgres import url_with

from pgonce.offsets_store.ledger.migrations import ensure_ledger

KOLKATA, NEW_YORK = "-ctimezone=Asia/Kolkata -cdatestyle=German", "-ctimezone=America/New_York -cdatestyle=SQL,MDY"


@pytest.fixture(autouse=True)
def ledger(url):
    """Each test has a ledger, which holds the tombstones."""
    ensure_ledger(url)


def at(hour: int) -> datetime:
    """An hour of a day."""
    return datetime(2026, 1, 1, hour, tzinfo=timezone.utc)


def test_time_zones_and_styles_do_not_matter(url, admin):
    """A key and an order that are instants are found again by a session of another time zone."""
    admin.execute("CREATE TABLE events (id timestamptz PRIMARY KEY, name text, seq timestamptz)")
    how = {"struct": changes(id=t.TimestampType(), name=t.StringType(), seq=t.TimestampType()), "only_newer": True}
    kolkata, new_york = url_with(url, options=KOLKATA), url_with(url, options=NEW_YORK)
    assert apply(kolkata, (at(0), None, at(3), DELETE), **how) == {"not_found": 1}
    assert apply(new_york, (at(0), "late", at(2), WRITE), **how) == {"passed_over": 1}
    assert apply(new_york, (at(0), "new", at(4), WRITE), **how) == {"written": 1}


def test_a_key_is_remembered_in_the_type_of_its_column(url, admin):
    """One frame has a date, the other a timestamp; the column is a timestamp, and the keys are the same."""
    admin.execute("CREATE TABLE events (id timestamp PRIMARY KEY, name text, seq bigint)")
    dates = changes(id=t.DateType(), name=t.StringType(), seq=t.LongType())
    times = changes(id=t.TimestampNTZType(), name=t.StringType(), seq=t.LongType())
    assert apply(url, (date(2026, 1, 1), None, 5, DELETE), struct=dates, only_newer=True) == {"not_found": 1}
    late = (datetime(2026, 1, 1), "late", 4, WRITE)  # noqa: DTZ001 (it has no zone in the table either)
    assert apply(url, late, struct=times, only_newer=True) == {"passed_over": 1}


@pytest.mark.parametrize("kind", ["char(5)", "bpchar"])
def test_spaces_at_the_end_of_a_char_are_not_remembered(kind, url, admin):
    """They do not count where two keys are compared, so an older change with fewer of them is passed over, too."""
    admin.execute(f"CREATE TABLE events (id {kind} PRIMARY KEY, name text, seq bigint)".encode())
    how = {"struct": changes(id=t.StringType(), name=t.StringType(), seq=t.LongType()), "only_newer": True}
    assert apply(url, ("a  ", None, 5, DELETE), ("b", None, 5, DELETE), **how) == {"not_found": 2}
    assert apply(url, ("a", "late", 4, WRITE), ("b ", "late", 4, WRITE), **how) == {"passed_over": 2}
    assert apply(url, ("a ", None, 6, DELETE), **how) == {"not_found": 1}
    assert admin.execute("SELECT count(*) FROM pgonce.tombstones").fetchone() == (2,)


@pytest.mark.parametrize("digits", [-10, 3])
def test_all_digits_of_a_float_are_remembered(digits, url, admin):
    """Though the role has set that fewer are shown."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text, seq float8)")
    url = url_with(url, options=f"-cextra_float_digits={digits}")
    how = {"struct": changes(id=t.LongType(), name=t.StringType(), seq=t.DoubleType()), "only_newer": True}
    order = 1.2345678901234567
    apply(url, (1, None, order, DELETE), (2, None, float("nan"), DELETE), **how)
    late = (1, "late", order - 2**-50, WRITE), (2, "late", float("inf"), WRITE)
    assert apply(url, *late, **how) == {"passed_over": 2}
    assert apply(url, (1, "new", order + 2**-50, WRITE), **how) == {"written": 1}


def test_a_key_is_looked_up_though_statistics_say_that_nothing_is_remembered(url, admin):
    """As after a VACUUM while the table was empty: each change reads its own tombstone, and not those of all."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint)")
    fill = (
        "INSERT INTO pgonce.tombstones SELECT s.tombstone_set_id, jsonb_build_array(id), '5', now(), now() + '1 day' "
        "FROM pgonce.tombstone_sets AS s, generate_series(1, 2000) AS id"
    )
    apply(url, (0, None, 5, DELETE), only_newer=True)
    admin.execute("ALTER TABLE pgonce.tombstones SET (autovacuum_enabled = off)")
    admin.execute(fill)
    admin.execute("DELETE FROM pgonce.tombstones")
    admin.execute("VACUUM (TRUNCATE off) pgonce.tombstones")
    admin.execute(fill)
    with psycopg.connect(url) as connection:
        rows = [(id_, "late", 4, WRITE) for id_ in range(1, 101)]
        assert apply(connection, *rows, only_newer=True) == {"passed_over": 100}
        read = connection.execute(
            "SELECT pg_stat_get_xact_tuples_fetched(oid) + pg_stat_get_xact_tuples_returned(oid) FROM pg_class "
            "WHERE oid = 'pgonce.tombstones'::regclass"
        ).fetchone()
    assert read[0] <= 200
