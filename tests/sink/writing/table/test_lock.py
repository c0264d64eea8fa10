"""A table is altered while a batch is on its way: no value arrives as another one, whenever that happens."""

from __future__ import annotations

import datetime as dt
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest
from pyspark.sql import types as t
from support.batches import make_batch
from support.blocked import wait_for_blocked
from support.committed_rows import settings, verdict_or_code
from support.fixtures.driver import wait_until
from support.typed_rows import staged_rows, typed_rows
from support.with_rooms import work_into, write_batch_in_tx

from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.sink.options.destination import destination
from pgonce.sink.staging import StagingTable, drop_staging_table
from pgonce.sink.writing.rows import Rows


@dataclass(frozen=True)
class Pair:
    """A column that rows go into as they are, and the type of the same width that somebody gives it meanwhile."""

    spark: t.DataType
    values: list[Any]
    before: str
    after: str
    using: str

    def __str__(self) -> str:
        return f"{self.before} to {self.after}".replace(" ", "_")


MOMENTS = [dt.datetime(2026, 1, day, 12) for day in (1, 2)]  # noqa: DTZ001 (a wall clock is meant)
NUMBER = Pair(t.IntegerType(), [1, 2, 7], "integer", "real", "k::real")
# Postgres checks this one itself, row by row.
SHORTER = Pair(t.StringType(), ["1", "a"], "text", "varchar(1)", "k::varchar(1)")
# accepted_pairs.txt says of every two types that rows which fit the one are not copied straight into the other.
PAIRS = [
    NUMBER,
    Pair(t.TimestampNTZType(), MOMENTS, "timestamp", "timestamptz", "k at time zone 'Asia/Tokyo'"),
    Pair(t.BinaryType(), [b"1", b"a"], "bytea", "text", "convert_from(k, 'UTF8')"),
    Pair(t.ArrayType(t.IntegerType()), [[1, 2]], "integer[]", "real[]", "k::real[]"),
    SHORTER,
]
STAGING = StagingTable("q1", "events", "run 1", 0)
TRANSPORTS = ("copied", "staged", "upserted", "replaced", "by a function")


def sent_by(transport: str, pair: Pair, url: str) -> Rows:
    """The rows as the commit gets them."""
    columns, rows = {"id": t.LongType(), "k": pair.spark}, list(enumerate(pair.values))
    return staged_rows(url, STAGING, columns, rows) if transport == "staged" else typed_rows(columns, rows)


def work_of(transport: str, pair: Pair, url: str) -> Work:
    """What a commit does whose rows come this way."""
    sent = sent_by(transport, pair, url)
    mode, keys = {"upserted": ("upsert", ("id",)), "replaced": ("complete", ())}.get(transport, ("append", ()))
    where = destination("events", mode, keys, None)
    if transport != "by a function":
        return work_into(None, where, sent)

    def publish(connection, *_):
        published = write_batch_in_tx(driver_connection(connection), where, sent)
        return Published(len(pair.values), "function", targets=published.targets)

    return Work(lambda _: "events", publish, sealed=True)


def create(admin, pair: Pair, name: str = "events") -> None:
    """A table that the rows go into as they are."""
    admin.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, k {pair.before})".encode())


def alter(pair: Pair, name: str = "events") -> bytes:
    """What somebody does to it."""
    return f"ALTER TABLE {name} ALTER k TYPE {pair.after} USING {pair.using}".encode()


def fill_reference(admin, pair: Pair) -> None:
    """What the values are in both forms of the column, by plain SQL."""
    create(admin, pair, "reference")
    for number, value in enumerate(pair.values):
        admin.execute("INSERT INTO reference VALUES (%s, %s)", [number, value])


def wrong_values(admin) -> int:
    """Rows whose value is not what plain SQL makes of it; the two tables have had the same ALTER."""
    return admin.execute(
        "SELECT count(*) FROM events AS e FULL JOIN reference AS r USING (id) "
        "WHERE e.id IS NOT NULL AND e.k::text IS DISTINCT FROM r.k::text"
    ).fetchone()[0]


def outcome(url: str, work: Work) -> str:
    """What becomes of a commit that waits for locks."""
    return verdict_or_code(settings(url, lock_timeout=30), make_batch(0), work)


def outcome_behind(ddl, admin, url, work) -> str:
    """What becomes of a commit that waits for somebody who alters a table, once that is done."""
    with psycopg.connect(url) as other, ThreadPoolExecutor(1) as pool:
        other.execute(ddl)
        committing = pool.submit(outcome, url, work)
        wait_for_blocked(admin, other)
        other.commit()
        return committing.result()


# Rows that are copied straight are the ones that could arrive as others; for the rest see the next test.
@pytest.mark.parametrize(
    ("pair", "transport"),
    [*((pair, "copied") for pair in PAIRS), *((SHORTER, transport) for transport in TRANSPORTS[1:])],
    ids=str,
)
def test_a_batch_that_waits_for_an_alter_sees_what_it_altered(pair, transport, admin, url):
    """The ALTER is under way when the batch comes; the batch is refused for the new type, or its values are right."""
    create(admin, pair)
    fill_reference(admin, pair)
    said = outcome_behind(alter(pair), admin, url, work_of(transport, pair, url))
    admin.execute(alter(pair, "reference"))
    assert wrong_values(admin) == 0
    stored = admin.execute("SELECT count(*) FROM events").fetchone()[0]
    recorded = admin.execute("SELECT count(*) FROM pgonce.batches").fetchone()[0]
    is_taken = pair is SHORTER and said == "NEW"
    assert (said, stored, recorded) == (("NEW", len(pair.values), 1) if is_taken else ("TYPE_MISMATCH", 0, 0))


@pytest.mark.parametrize(
    "transport", ["copied", "staged", *(pytest.param(way, marks=pytest.mark.thorough) for way in TRANSPORTS[2:])]
)
def test_an_alter_may_come_at_every_step_of_the_commit(transport, url, admin, proxy):
    """Before each message in turn: it is done by then, or waits for the batch, and no value is another one."""
    pair = NUMBER
    ensure_ledger(proxy.url)
    fill_reference(admin, pair)
    admin.execute(alter(pair, "reference"))
    seen = set()
    for step in itertools.count():
        admin.execute(b"DROP TABLE IF EXISTS events; TRUNCATE pgonce.writers CASCADE")
        drop_staging_table(admin, STAGING.name)
        create(admin, pair)
        work = work_of(transport, pair, url)
        messages = itertools.count()
        with psycopg.connect(url, autocommit=True) as other:
            altering = threading.Thread(target=other.execute, args=[alter(pair)])

            def strike(kind, _, step=step, messages=messages, altering=altering, other=other):
                # Statements and rows; what is said at a connection's end may come late.
                if kind not in (b"Q", b"P", b"d") or next(messages) != step:
                    return
                altering.start()
                blockers = "SELECT cardinality(pg_blocking_pids(%s))"
                with psycopg.connect(url, autocommit=True) as looking:
                    pid = other.info.backend_pid
                    assert wait_until(
                        lambda: not altering.is_alive() or looking.execute(blockers, [pid]).fetchone()[0], seconds=60
                    )

            proxy.before_message = strike
            said = outcome(proxy.url, work)
            proxy.before_message = None
            if next(messages) <= step:
                break
            altering.join()
        seen.add(said)
        assert wrong_values(admin) == 0, f"step {step}: {said}"
        stored = admin.execute("SELECT count(*) FROM events").fetchone()[0]
        assert stored == (len(pair.values) if said == "NEW" else 0), f"step {step}: {said}"
    # Both early and late steps were met.
    assert seen == {"NEW", "TYPE_MISMATCH"}


CHANGES = {
    "unlogged": (b"ALTER TABLE events SET UNLOGGED", "TARGET_NOT_DURABLE"),
    "a rule": (b"CREATE RULE r AS ON INSERT TO events DO INSTEAD NOTHING", "TARGET_HAS_RULES"),
    "a view": (b"ALTER TABLE events RENAME TO old; CREATE VIEW events AS SELECT * FROM old", "TARGET_NOT_A_TABLE"),
    "another table": (b"ALTER TABLE events RENAME TO old; CREATE TABLE events (id bigint, k real)", "TYPE_MISMATCH"),
    "a column gone": (b"ALTER TABLE events DROP k", "COLUMN_UNKNOWN"),
    "a column added": (b"ALTER TABLE events ADD more int NOT NULL", "COLUMN_MISSING"),
    "gone": (b"DROP TABLE events", "TARGET_MISSING"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_all_that_is_checked_of_a_table_is_checked_once_it_cannot_change(change, admin, url):
    """What was done while the batch waited is met by this batch."""
    pair = NUMBER
    ddl, code = CHANGES[change]
    create(admin, pair)
    assert outcome_behind(ddl, admin, url, work_of("by a function", pair, url)) == code


def test_a_partition_that_is_attached_meanwhile_is_looked_at(admin, url):
    """Attaching waits for nobody who writes; so the partitions are looked at once more when the rows are written."""
    admin.execute(b"CREATE TABLE events (id bigint, k integer) PARTITION BY RANGE (id)")
    admin.execute(b"CREATE TABLE first PARTITION OF events FOR VALUES FROM (0) TO (1)")
    admin.execute(b"CREATE UNLOGGED TABLE second (id bigint, k integer)")
    sent = sent_by("copied", NUMBER, url)

    def bodies():
        # After the look at the table, and before any row.
        with psycopg.connect(url, autocommit=True) as other:
            other.execute(b"ALTER TABLE events ATTACH PARTITION second FOR VALUES FROM (1) TO (9)")
        return sent.bodies()

    work = work_into(None, destination("events", "append", (), None), replace(sent, bodies=bodies))
    assert outcome(url, work) == "TARGET_NOT_DURABLE"
    assert admin.execute(b"SELECT count(*) FROM events").fetchone() == (0,)
