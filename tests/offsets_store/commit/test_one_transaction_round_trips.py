"""How many round trips a small commit is, and that each of them may be the one in which the line breaks."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from pyspark.sql import types as t
from support import routed_rows
from support.batches import make_batch
from support.committed_rows import COLUMNS, ids, job, rows, settings
from support.fixtures.proxy import Proxy
from support.typed_rows import typed_rows
from support.with_rooms import work_into

from pgonce.offsets_store.commit.batch_job import commit_job
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import PgonceError
from pgonce.sink.options.destination import destination
from pgonce.sink.writing.rows import Rows


@pytest.fixture(autouse=True)
def tables(admin):
    """Those that are written to."""
    for name in ("events", "orders"):
        admin.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, name text)")


def changed(number: int) -> Rows:
    """One change that writes."""
    return typed_rows({**COLUMNS, "gone": t.BooleanType()}, [(number, "n", False)])


def appended(number: int) -> Work:
    """One row, into a table after which the sink is named."""
    return work_into(None, destination("events", "append", (), None), rows(number))


def upserted(number: int) -> Work:
    """One row, by its key."""
    return work_into(None, destination("events", "upsert", ("id",), None), rows(number))


def applied(number: int) -> Work:
    """One change, by its key."""
    return work_into(None, destination("events", "apply", ("id",), None, delete_when="gone"), changed(number))


def routed(number: int) -> Work:
    """Two rows, for two tables."""
    where = routed_rows.routes({"a": {"table": "events"}, "b": {"table": "orders"}})
    return work_into("routed", where, routed_rows.routed(("a", number, "n"), ("b", number, "n")))


WAYS = {"append": appended, "upsert": upserted, "apply": applied, "routes": routed}


@dataclass
class Line:
    """Counts the messages of the clients of a proxy, and breaks their connection at the one of this ``number``."""

    proxy: Proxy
    number: int = 0
    seen: int = 0
    trips: int = 0
    had_commit: bool = False

    def __call__(self, kind: bytes, body: bytes) -> None:
        self.seen += 1
        self.had_commit |= self.seen < self.number and kind == b"P" and body.startswith(b"\0COMMIT\0")
        # Postgres answers a query, and what came before Sync; and the end of a COPY.
        self.trips += kind in (b"Q", b"S", b"c")
        if self.seen == self.number:
            self.proxy.cut_all()

    @property
    def broke(self) -> bool:
        """Whether there was such a message."""
        return self.seen >= self.number


@pytest.mark.parametrize(("way", "trips"), [("append", 5), ("upsert", 7), ("apply", 9), ("routes", 12)])
def test_a_small_commit_is_few_round_trips(way, trips, admin, proxy):
    """Two of them are a COPY's; begin, lock and ledger are one, and so are record and COMMIT."""
    for number in range(2):
        commit_batch(settings(proxy.url), make_batch(number), WAYS[way](number))
    proxy.before_message = line = Line(proxy)
    commit_batch(settings(proxy.url), make_batch(2), WAYS[way](2))
    assert ids(admin) == [0, 1, 2]
    assert line.trips == trips


@pytest.mark.parametrize(
    "way", ["append", *(pytest.param(way, marks=pytest.mark.thorough) for way in ("upsert", "apply", "routes", "job"))]
)
def test_the_line_may_break_at_any_message(way, admin, proxy):
    """The batch, or the batch job, is there once, and is called landed only if COMMIT had been sent."""
    patient = settings(proxy.url, retry_timeout=60)

    def commit(number: int) -> str:
        if way == "job":
            return commit_job(patient, job(f"job {number}"), appended(number)).verdict.name
        return commit_batch(patient, make_batch(number), WAYS[way](number)).name

    said, line = [commit(0)], None
    while line is None or line.broke:
        proxy.before_message = line = Line(proxy, len(said))
        said.append(commit(len(said)))
        # Whether what had been sent when the line broke still reached the server, is up to the two of them.
        assert line.had_commit or said[-1] != "LANDED"
    assert ids(admin) == list(range(len(said)))
    assert set(said[:-1]) <= {said[-1], "LANDED"}
    assert said[-1] in {"NEW", "PUBLISHED"}


def test_what_fails_at_commit_is_the_tables_and_what_fails_before_it_is_the_ledgers(admin, url):
    """Record and COMMIT are one round trip, and each error is still said of what has failed."""
    commit_batch(settings(url), make_batch(0), appended(0))
    admin.execute("CREATE TABLE parents (id bigint PRIMARY KEY)")
    admin.execute("ALTER TABLE events ADD FOREIGN KEY (id) REFERENCES parents NOT VALID DEFERRABLE INITIALLY DEFERRED")
    with pytest.raises(PgonceError, match=r"FOREIGN_KEY_VIOLATION.*parents"):
        commit_batch(settings(url), make_batch(1), appended(1))
    admin.execute("ALTER TABLE pgonce.batches ADD CHECK (batch_id <> 2) NOT VALID")
    admin.execute("INSERT INTO parents VALUES (1), (2)")
    commit_batch(settings(url), make_batch(1), appended(1))
    with pytest.raises(PgonceError, match=r"LEDGER_FAILED.*batches"):
        commit_batch(settings(url), make_batch(2), appended(2))
    assert ids(admin) == [0, 1]
