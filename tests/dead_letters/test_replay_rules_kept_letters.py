"""Whatever letters are replayed together: the newest change of each key is in the table, and none is lost silently."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t
from support.dead_letters import STRUCT, a_past, by_key, put_aside, replayed

CHANGES = t.StructType([
    *STRUCT.fields,
    t.StructField("seq", t.LongType()),
    t.StructField("gone", t.BooleanType()),
])  # fmt: skip
WHERE = by_key("apply", only_newer=True, delete_when="gone")
KEYS = st.integers(1, 3)
LETTERS = st.lists(st.tuples(KEYS, st.booleans()), min_size=1, max_size=8)


@pytest.fixture
def admin(url, admin):
    """A connection that may do anything; a query has published a batch, and there is its table."""
    a_past(url)
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint)")
    return admin


def replayed_one_by_one(stored, letters):
    """
    The table after the letters, and the numbers of those that are not newer than what is there, or delete nothing.

    Last come those that delete what another letter has deleted: which of the two has done it depends on the halves.
    """
    rows, deleted, older, without, again = dict(stored), {}, set(), set(), set()
    for seq, key, gone in sorted(letters):
        if seq <= max(rows.get(key, 0), deleted.get(key, 0)):
            older.add(seq)
        elif gone:
            without |= set() if key in rows else {seq}
            again |= {seq} if key not in rows and key in deleted else set()
            rows.pop(key, None)
            deleted[key] = seq
        else:
            rows[key] = seq
    return rows, older, without, again


@settings(
    max_examples=int(os.environ.get("PGONCE_MODEL_EXAMPLES", "25")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data(), changes=LETTERS, stored=st.dictionaries(KEYS, st.integers(1, 8)))
def test_the_table_has_the_newest_change_and_what_had_no_effect_keeps_its_letter(url, admin, data, changes, stored):
    """A dry run says the same, and a letter goes only if its row took effect or gave way to a newer letter."""
    admin.execute("TRUNCATE events, pgonce.tombstones, pgonce.dead_letters")
    for key, seq in stored.items():
        admin.execute("INSERT INTO events VALUES (%s, 'stored', %s)", [key, seq])
    letters = [(seq, key, gone) for seq, (key, gone) in enumerate(changes, start=1)]
    for seq, key, gone in data.draw(st.permutations(letters)):
        put_aside(admin, {"id": key, "name": "n", "seq": seq, "gone": gone}, WHERE, CHANGES)
    rows, older, without, again = replayed_one_by_one(stored, letters)
    (tried,) = replayed(url, dry_run=True)
    (done,) = replayed(url)
    assert {one.letter.dead_letter_id: one.why for one in tried.kept} == {
        one.letter.dead_letter_id: one.why for one in done.kept
    }
    assert dict(admin.execute("SELECT id, seq FROM events").fetchall()) == rows
    left = {seq for (seq,) in admin.execute("SELECT (row_data ->> 'seq')::int FROM pgonce.dead_letters").fetchall()}
    last = {key: seq for seq, key, _ in letters}
    # What gives way to a letter that takes effect may be done, although it would have had no effect by itself.
    in_vain = older | without - again
    must_stay = {seq for seq, key, _ in letters if last[key] in in_vain and (seq in older or seq == last[key])}
    assert must_stay <= left <= older | without
