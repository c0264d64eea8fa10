"""A delete is remembered for the table, the key columns and the order that it was made by, and for no others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import psycopg
import pytest
from pyspark.sql import types as t
from support.applied_changes import DELETE, WRITE, apply, changes
from support.blocked import wait_for_blocked

from pgonce.offsets_store.errors import TargetError

LONG, TEXT = t.LongType(), t.StringType()
TABLE = "CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint)"
PARTED = (
    "CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint) PARTITION BY RANGE (id); "
    "CREATE TABLE low PARTITION OF events FOR VALUES FROM (0) TO (100)"
)


def newer(url, *rows, **how):
    """Apply only what is newer."""
    return apply(url, *rows, only_newer=True, **how)


def refused(url, *rows, **how):
    """What a batch is told that is known by other keys or another order."""
    with pytest.raises(TargetError, match=r"\[TOMBSTONES_DIFFER\]") as error:
        newer(url, *rows, **how)
    return str(error.value)


def forget_as_told(admin, text):
    """Run the statement that the error names."""
    statement = text[text.index("DELETE FROM pgonce.tombstone_sets") :]
    admin.execute(statement[: statement.index(")") + 1].encode())


def test_a_batch_of_another_key_is_refused_until_deletes_are_forgotten(url, admin):
    """A delete of id 7 is none of code 7: the batch is refused, until the deletes are forgotten."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, code bigint UNIQUE, name text, seq bigint)")
    struct = changes(id=LONG, code=LONG, name=TEXT, seq=LONG)
    newer(url, (7, None, None, 100, DELETE), struct=struct, keys=["id"])
    row = (1, 7, "never deleted", 50, WRITE)
    text = refused(url, row, struct=struct, keys=["code"])
    assert "'id' ('number') in the order of 'seq' ('number')" in text
    assert "by 'code' ('number')" in text
    forget_as_told(admin, text)
    assert newer(url, row, struct=struct, keys=["code"]) == {"written": 1}
    # Without its set, the tombstone has no effect.
    assert newer(url, (7, 8, "old", 50, WRITE), struct=struct, keys=["id"]) == {"written": 1}


def test_a_renamed_key_column(url, admin):
    """The values would stand in another order. Once the ledger is told the new name, they are found again."""
    admin.execute("CREATE TABLE events (a bigint, b bigint, name text, seq bigint, PRIMARY KEY (a, b))")
    newer(url, (1, 2, None, 100, DELETE), struct=changes(a=LONG, b=LONG, name=TEXT, seq=LONG))
    admin.execute("ALTER TABLE events RENAME a TO c")
    struct = changes(c=LONG, b=LONG, name=TEXT, seq=LONG)
    refused(url, (2, 1, "never deleted", 50, WRITE), struct=struct)
    admin.execute("UPDATE pgonce.tombstone_sets SET key_columns = '{c,b}'")
    rows = (2, 1, "never deleted", 50, WRITE), (1, 2, "old", 50, WRITE), (3, 3, None, 60, DELETE)
    assert newer(url, *rows, struct=struct) == {"written": 1, "passed_over": 1, "not_found": 1}
    again = (1, 2, "old", 50, WRITE), (3, 3, "old", 59, WRITE)
    assert newer(url, *again, struct=struct) == {"passed_over": 2}


def test_a_batch_in_another_order_than_its_deletes_is_refused(url, admin):
    """Whether 4 is newer than 100000 cannot be told where one is a version and the other a position."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text, lsn bigint, ver bigint)")
    struct = changes(id=LONG, name=TEXT, lsn=LONG, ver=LONG)
    newer(url, (1, None, 100_000, 3, DELETE), struct=struct, order_by="lsn")
    assert "orderBy" in refused(url, (1, "newer by both", 100_001, 4, WRITE), struct=struct, order_by="ver")


def test_a_column_that_got_wider(url, admin):
    """Numbers are compared as numbers, and texts as texts, whatever their columns were."""
    admin.execute("CREATE TABLE events (id int, code varchar(3), name text, seq int, PRIMARY KEY (id, code))")
    integers = changes(id=LONG, code=TEXT, name=TEXT, seq=LONG)
    decimals = changes(id=LONG, code=TEXT, name=TEXT, seq=t.DecimalType(20, 2))
    newer(url, (1, "a", None, 5, DELETE), struct=integers)
    admin.execute("ALTER TABLE events ALTER id TYPE bigint, ALTER code TYPE text, ALTER seq TYPE numeric(20, 2)")
    assert newer(url, (1, "a", "old", Decimal("4.99"), WRITE), struct=decimals) == {"passed_over": 1}
    assert newer(url, (2, "a", None, Decimal("5.01"), DELETE), struct=decimals) == {"not_found": 1}
    admin.execute("ALTER TABLE events ALTER id TYPE int, ALTER seq TYPE bigint")
    late = (1, "a", "old", 4, WRITE), (2, "a", "old", 5, WRITE)
    assert newer(url, *late, struct=integers) == {"passed_over": 2}


def test_deletes_that_have_expired_refuse_nobody(url, admin):
    """Then the other keys and orders go on."""
    admin.execute(TABLE + "; ALTER TABLE events ADD ver bigint")
    newer(url, (1, None, 5, DELETE))
    admin.execute("UPDATE pgonce.tombstone_sets SET expires_at = now()")
    struct = changes(id=LONG, name=TEXT, ver=LONG)
    assert newer(url, (1, "a", 1, WRITE), struct=struct, order_by="ver") == {"written": 1}


def test_keys_that_cannot_be_remembered(url, admin):
    """They are in no set, so they are refused while there are others."""
    admin.execute(TABLE + "; ALTER TABLE events ADD at float8 UNIQUE")
    newer(url, (1, None, 5, DELETE))
    struct = changes(id=LONG, at=t.DoubleType(), seq=LONG)
    with pytest.raises(TargetError, match="TOMBSTONES_DIFFER"):
        newer(url, (2, 1.5, 1, WRITE), struct=struct, keys=["at"], deletes="ignore")


@pytest.mark.parametrize(("deleting", "late"), [("events", "low"), ("low", "events"), ("low", "low")])
def test_a_partition_and_its_parent(deleting, late, url, admin):
    """A row of one is a row of the other: whichever deletes it, an older change does not bring it back."""
    admin.execute(PARTED)
    newer(url, (1, "x", 1, WRITE), table=deleting)
    assert newer(url, (1, None, 10, DELETE), table=deleting) == {"deleted": 1}
    assert newer(url, (1, "old", 5, WRITE), table=late) == {"passed_over": 1}
    assert admin.execute("SELECT target_name FROM pgonce.tombstone_sets").fetchall() == [("public.events",)]


def test_writers_of_a_partition_and_of_its_parent_take_turns(url, admin):
    """The second reads the tombstones once the first has left its own."""
    admin.execute(PARTED)
    with psycopg.connect(url) as first, ThreadPoolExecutor(1) as pool:
        newer(first, (1, None, 10, DELETE), table="events")
        second = pool.submit(newer, url, (1, "old", 5, WRITE), table="low")
        wait_for_blocked(admin, first)
        first.commit()
        assert second.result() == {"passed_over": 1}


def test_partitions_that_have_keys_of_their_own(url, admin):
    """A delete from one says nothing of the row that has the same key in another one, and the keys may differ."""
    admin.execute(
        "CREATE TABLE events (id bigint, name text, seq bigint, region text) PARTITION BY LIST (region); "
        "CREATE TABLE ea PARTITION OF events FOR VALUES IN ('a'); ALTER TABLE ea ADD UNIQUE (id); "
        "CREATE TABLE eb PARTITION OF events FOR VALUES IN ('b'); ALTER TABLE eb ADD UNIQUE (id), ADD UNIQUE (name); "
        "ALTER TABLE ea ALTER region SET DEFAULT 'a'; ALTER TABLE eb ALTER region SET DEFAULT 'b'"
    )
    newer(url, (1, None, 10, DELETE), table="ea", keys=["id"])
    assert newer(url, (1, "b's", 5, WRITE), table="eb", keys=["id"]) == {"written": 1}
    assert newer(url, (1, "late", 5, WRITE), table="ea", keys=["id"]) == {"passed_over": 1}
    assert newer(url, (2, "by name", 5, WRITE), table="eb", keys=["name"]) == {"written": 1}
    assert admin.execute("SELECT target_name FROM pgonce.tombstone_sets").fetchall() == [("public.ea",)]


def test_a_partition_of_a_partition_whose_keys_choose_only_the_lower_one(url, admin):
    """Its deletes are remembered with the table above it, and the root, which has other keys, refuses to guess."""
    admin.execute(
        "CREATE TABLE events (id bigint, name text, seq bigint, region text DEFAULT 'a', PRIMARY KEY (id, region)) "
        "PARTITION BY LIST (region); "
        "CREATE TABLE ea PARTITION OF events (UNIQUE (id)) FOR VALUES IN ('a') PARTITION BY RANGE (id); "
        "CREATE TABLE low PARTITION OF ea FOR VALUES FROM (0) TO (100)"
    )
    newer(url, (1, None, 10, DELETE), table="low", keys=["id"])
    assert newer(url, (1, "late", 5, WRITE), table="ea", keys=["id"]) == {"passed_over": 1}
    assert admin.execute("SELECT target_name FROM pgonce.tombstone_sets").fetchall() == [("public.ea",)]
    struct = changes(id=LONG, name=TEXT, seq=LONG, region=TEXT)
    with pytest.raises(TargetError, match="TOMBSTONES_DIFFER"):
        newer(url, (1, "late", 5, "a", WRITE), struct=struct, keys=["id", "region"])


def test_a_table_that_becomes_a_partition_brings_its_deletes(url, admin):
    """What is remembered of it holds for the table that it is a part of."""
    admin.execute(PARTED + "; CREATE TABLE high (LIKE events INCLUDING ALL)")
    newer(url, (101, None, 10, DELETE), table="high")
    newer(url, (1, None, 10, DELETE), table="events")
    admin.execute("ALTER TABLE events ATTACH PARTITION high FOR VALUES FROM (100) TO (200)")
    late = (1, "old", 5, WRITE), (101, "old", 5, WRITE)
    assert newer(url, *late, table="events") == {"passed_over": 2}
    assert newer(url, late[1], table="high") == {"passed_over": 1}


@pytest.mark.parametrize("gone", ["DROP TABLE events", "ALTER TABLE events RENAME TO events_old"])
def test_another_table_of_the_same_name_has_none(gone, url, admin):
    """A table that was created again begins with older rows; those of the one before stay with that one."""
    admin.execute(TABLE)
    newer(url, (1, None, 10, DELETE))
    admin.execute(f"{gone}; {TABLE}".encode())
    assert newer(url, (1, "first", 1, WRITE)) == {"written": 1}
    left = [("public.events_old",)] if "RENAME" in gone else []
    assert admin.execute("SELECT target_name FROM pgonce.tombstone_sets").fetchall() == left
    if left:
        assert newer(url, (1, "old", 5, WRITE), table="events_old") == {"passed_over": 1}
