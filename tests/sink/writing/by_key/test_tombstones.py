"""A delete is remembered by the same key and order, whatever the session's settings and the frame's types are."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal

import psycopg
import pytest
from pyspark.sql import types as t
from support.applied_changes import DELETE, WRITE, apply, changes
from support.fixtures.postgres import url_with

from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.sink.writing.by_key import upsert

KOLKATA, NEW_YORK = "-ctimezone=Asia/Kolkata -cdatestyle=German", "-ctimezone=America/New_York -cdatestyle=SQL,MDY"


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


@pytest.mark.parametrize("order", [0.7, 0.3, 1.1, 16.7])
def test_a_write_as_new_as_the_delete_brings_the_row_back_by_a_real_too(order, url, admin):
    """A column of type real holds another number than the same digits in double precision."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text, seq real)")
    how = {"struct": changes(id=t.LongType(), name=t.StringType(), seq=t.FloatType()), "only_newer": True}
    assert apply(url, (1, None, order, DELETE), **how) == {"not_found": 1}
    assert apply(url, (1, "as new", order, WRITE), **how) == {"written": 1}


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


@pytest.mark.parametrize(
    ("kind", "of_spark", "orders"),
    [
        ("int", t.IntegerType(), (3, 5, 7)),
        ("numeric(10,2)", t.DecimalType(10, 2), (Decimal("-0.5"), Decimal("9.5"), Decimal("10.25"))),
        ("float8", t.DoubleType(), (-1e300, 0.1, float("nan"))),
        ("date", t.DateType(), (date(1, 1, 1), date(2026, 1, 1), date(9999, 12, 31))),
        ("timestamp", t.TimestampNTZType(), tuple(datetime(2026, 1, day) for day in (1, 2, 31))),  # noqa: DTZ001
        ("timestamptz", t.TimestampType(), (at(3), at(4), at(23))),
        ("text", t.StringType(), ("a", "b", "c")),
        ("uuid", t.StringType(), tuple(f"{n}0000000-0000-0000-0000-000000000000" for n in "19f")),
    ],
)
@pytest.mark.parametrize(("merged_rows", "stones"), [(0, 2000), (50_000, 2)])
def test_older_than_the_delete_of_its_key(merged_rows, stones, kind, of_spark, orders, url, admin, monkeypatch):
    """Whether a batch is large, few or many deletes are remembered, and whether others are newer or older."""
    monkeypatch.setattr(upsert, "MERGED_ROWS", merged_rows)
    admin.execute(f"CREATE TABLE events (id bigint PRIMARY KEY, name text, seq {kind})".encode())
    how = {"struct": changes(id=t.LongType(), name=t.StringType(), seq=of_spark), "only_newer": True}
    low, middle, high = orders
    others = [(n, None, low if n % 2 else middle, DELETE) for n in range(10, 10 + stones)]
    remembered = [(n, None, middle, DELETE) for n in (1, 2, 3)]
    assert apply(url, *remembered, *others, **how) == {"not_found": 3 + stones}
    late = [(1, "older", low, WRITE), (2, "the same", middle, WRITE), (3, "newer", high, WRITE), (4, "new", low, WRITE)]
    assert apply(url, *late, **how) == {"passed_over": 1, "written": 3}
    # Now the newest delete is newer than all changes.
    assert apply(url, (5, None, high, DELETE), (3, None, middle, DELETE), **how) == {"not_found": 1, "passed_over": 1}
    late = [(1, "older", low, WRITE), (5, "older", middle, WRITE), (6, "new", low, WRITE), (7, None, low, DELETE)]
    assert apply(url, *late, **how) == {"passed_over": 2, "written": 1, "not_found": 1}
    assert admin.execute("SELECT id FROM events ORDER BY id").fetchall() == [(2,), (3,), (4,), (6,)]


@pytest.mark.parametrize(("collation", "low", "high"), [("C", "B", "a"), ("und-x-icu", "a", "B")])
def test_texts_are_older_by_the_collation_of_their_column(collation, low, high, icu_url, monkeypatch):
    """In a large batch as well, whatever the greatest of the remembered texts is to the database."""
    monkeypatch.setattr(upsert, "MERGED_ROWS", 0)
    ensure_ledger(icu_url)
    how = {"struct": changes(id=t.LongType(), name=t.StringType(), seq=t.StringType()), "only_newer": True}
    with psycopg.connect(icu_url, autocommit=True) as admin:
        create = f'CREATE TABLE events (id bigint PRIMARY KEY, name text, seq text COLLATE "{collation}")'
        admin.execute(create.encode())
        apply(icu_url, (1, None, low, DELETE), (2, None, high, DELETE), **how)
        late = [(1, "new", high, WRITE), (2, "late", low, WRITE), (3, None, low, DELETE)]
        assert apply(icu_url, *late, **how) == {"written": 1, "passed_over": 1, "not_found": 1}
