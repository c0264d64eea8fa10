"""The thread that reads the ledger again and again: what it costs Postgres, and what it says when that is away."""

from __future__ import annotations

import queue
import threading
import time
from contextlib import contextmanager

import pytest
from support.patience import PATIENCE_SECONDS
from support.watched import fail, fill

from pgonce.cli.watch import poller
from pgonce.cli.watch.poller import Outage, Picture, Poller, Reader
from pgonce.offsets_store.errors import ConnectError, NoLedgerError

SESSIONS = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgonce'
"""


@contextmanager
def reading(url):
    """A reader, closed in the end."""
    reader = Reader(url)
    try:
        yield reader
    finally:
        reader.close()


@contextmanager
def polling(url, every=0.05):
    """A poller, and the queue of what it delivers."""
    told = queue.Queue()
    started = Poller(Reader(url), every, told.put)
    started.start()
    try:
        yield started, told
    finally:
        started.stop(PATIENCE_SECONDS)


def first(told, kind):
    """The first of this kind that is delivered."""
    while not isinstance(found := told.get(timeout=PATIENCE_SECONDS), kind):
        pass
    return found


def statements_of(proxy):
    """What the clients of the proxy send from now on: the texts of their statements."""
    said = []
    proxy.before_message = lambda kind, body: said.append((kind + body).decode(errors="replace"))
    return said


class TestReader:
    def test_a_look_is_two_statements_over_one_connection(self, tcp_url, proxy):
        """The states, and one of: the findings, the course of the last hour (once a minute), or one query."""
        fill(tcp_url, 3)
        with reading(proxy.url) as reader:
            first_look = reader.look()
            key = (first_look.queries[0].query_id, first_look.queries[0].sink_name)
            for opened in (None, None, key, None):
                said = statements_of(proxy)
                reader.look(opened)
                reads = [text for text in said if "pgonce." in text]
                assert len(reads) == 2, said
                assert sum("pgonce.queries" in text for text in reads) == 1
            assert proxy.connections == 1

    def test_nothing_is_written_and_no_transaction_stays_open(self, url, observer):
        """Between two looks, its session is idle, and has no transaction."""
        fill(url, 1)
        with reading(url) as reader:
            reader.look()
            states = observer.execute(
                "SELECT state, backend_xid IS NULL FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid() AND application_name = 'pgonce'"
            ).fetchall()
            assert states == [("idle", True)]

    def test_what_a_picture_has(self, url):
        """All queries and findings; at the next look the last hour; and all of a query while it is open."""
        fill(url, 2)
        fail(url, "query_2")
        with reading(url) as reader:
            picture = reader.look()
            assert {query.query_name: query.state for query in picture.queries}["query_2"] == "refused"
            assert [found.finding for found in picture.findings] == ["refused"]
            picture = reader.look()
            assert sum(picture.activity[picture.queries[0].query_id, picture.queries[0].sink_name]) == sum(
                range(100, 110)
            )
            key = (picture.queries[1].query_id, picture.queries[1].sink_name)
            opened = reader.look(key)
            assert opened.known_of == key
            assert [failure.code for failure in opened.known.failures] == ["TYPE_MISMATCH"]
            assert opened.findings == picture.findings
            # The others stay as they were, and this one is read: it alone costs little among hundreds.
            fail(url, "query_1")
            fail(url, "query_2", code="ANOTHER")
            states = {query.query_name: query for query in reader.look(key).queries}
            assert (states["query_1"].state, states["query_2"].failure_code) == ("running", "ANOTHER")
            assert reader.look().known is None

    def test_the_last_hour_is_read_once_a_minute(self, url, monkeypatch):
        """Because it reads the records of all batches in it."""
        fill(url, 1)
        read = []
        monkeypatch.setattr(poller, "activity", lambda connection: read.append(connection) or [])
        with reading(url) as reader:
            for _ in range(5):
                reader.look()
            assert len(read) == 1
            # With pauses of more than a minute it is always due, and takes turns with the rest.
            monkeypatch.setattr(poller, "ACTIVITY_SECONDS", 0)
            fail(url, "query_1")
            looks = [reader.look() for _ in range(4)]
            assert len(read) == 3
            assert [found.finding for found in looks[-1].findings] == ["refused"]
            key = (looks[-1].queries[0].query_id, looks[-1].queries[0].sink_name)
            fail(url, "query_1", code="ANOTHER")
            assert [len(reader.look(key).known.failures) for _ in range(3)] == [2, 2, 2]
            assert len(read) == 4

    @pytest.mark.no_ledger
    def test_what_cannot_be_read(self, url, proxy):
        """A missing ledger and a server that is away are errors as everywhere else."""
        with reading(url) as reader, pytest.raises(NoLedgerError):
            reader.look()
        proxy.stop()
        with reading(proxy.url) as reader, pytest.raises(ConnectError):
            reader.look()


class TestPoller:
    def test_it_goes_on_whatever_goes_wrong(self, url, monkeypatch):
        """What nobody has thought of is said on the screen too, and the next look is made."""
        fill(url, 1)

        def broken(connection):
            raise ValueError("password=secret")

        with polling(url) as (_, told):
            first(told, Picture)
            monkeypatch.setattr(poller, "query_states", broken)
            assert first(told, Outage).why == "ValueError: password=***"
            monkeypatch.undo()
            first(told, Picture)

    def test_it_looks_at_once_when_it_is_asked(self, url):
        """However long its pauses are; and at the query that is open."""
        fill(url, 1)
        with polling(url, every=3600) as (started, told):
            key = (first(told, Picture).queries[0].query_id, "public.table_1")
            started.look_now(key)
            assert first(told, Picture).known_of == key

    def test_it_ends(self, url, observer):
        """When it is stopped, its thread ends, and so does its session."""
        fill(url, 1)
        with polling(url) as (_, told):
            first(told, Picture)
        assert not [one for one in threading.enumerate() if one.name == "pgonce watch"]
        end = time.monotonic() + PATIENCE_SECONDS
        # The server notices a moment later that its client has gone.
        while observer.execute(SESSIONS).fetchone() != (0,):
            assert time.monotonic() < end
