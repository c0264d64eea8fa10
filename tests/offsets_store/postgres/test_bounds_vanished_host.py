"""
A host vanishes without a word, and nothing of it acknowledges: each end notices within the bound that url sets.

Without TCP_USER_TIMEOUT, an end that has sent something waits for a quarter of an hour; a server whose client is gone,
for two hours.
"""

from __future__ import annotations

import logging
import socket
import threading
import time

import psycopg
import pytest
from support.batches import make_batch
from support.committed_rows import STRUCT, TABLE, ids, rows, settings
from support.fixtures.driver import wait_until
from support.patience import PATIENCE_SECONDS
from support.progress_events import Event
from support.rows import given_rows
from support.sent_rows import arrow_rows
from support.with_rooms import write_batch_in_tx

from pgonce.offsets_store.commit import one_try
from pgonce.offsets_store.commit.one_transaction import begin_in_tx
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.ledger.lock import lock_writer_in_tx
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.postgres.bounds import enter_in_tx, outlast_locks
from pgonce.offsets_store.postgres.connect import connect, driver_connection, engine_for
from pgonce.offsets_store.progress.listener import OffsetsListener
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.data_source.stager import Stager, stage_rows
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import ATTEMPT_COLUMN, encoded_columns
from pgonce.sink.options.destination import destination
from pgonce.sink.staging import StagingTable

# The bound in these tests is two seconds, and connecting takes two more; without it, all of them wait for 15 minutes.
_SOON_SECONDS = 60.0
_DIRECTIONS = ("requests", "answers", "both")


@pytest.fixture
def observer(vanishing):
    """A connection that sees the server whatever is lost; the table is there."""
    with psycopg.connect(vanishing.observed_at, autocommit=True) as connection:
        connection.execute(TABLE)
        yield connection


class Gone:
    """A host that is gone from :meth:`now` until somebody is seen to notice; in the end somebody must have."""

    def __init__(self, hole, is_noticed):
        self._hole = hole
        self._is_noticed = is_noticed
        self._noticed = threading.Event()
        # In a thread, for who notices is in the midst of something.
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._watcher.join(PATIENCE_SECONDS)
        assert self._noticed.is_set(), f"nobody noticed within {_SOON_SECONDS:g} s"

    def now(self):
        """From now on it is gone."""
        self._hole.open()
        self._watcher.start()

    def _watch(self):
        until = time.monotonic() + _SOON_SECONDS
        while not self._noticed.is_set() and time.monotonic() < until:
            if self._is_noticed():
                self._noticed.set()
            time.sleep(0.05)
        self._hole.close()


def sessions(observer, name):
    """The sessions of this name."""
    return observer.execute("SELECT pid FROM pg_stat_activity WHERE application_name = %s", [name]).fetchall()


@pytest.fixture
def is_tried_again(caplog):
    """Whether the log has said by now that some work is tried again."""
    caplog.set_level(logging.INFO, "pgonce")
    return lambda: any("again in" in record.getMessage() for record in caplog.records)


def publishing(*new, then=lambda: None):
    """Work that inserts these ids; at the first try, something happens when the COPY has their bytes."""
    steps = [then]

    def publish(connection, *_):
        def bodies():
            yield from rows(*new).bodies()
            if steps:
                steps.pop()()

        everything = given_rows(encoded_columns(STRUCT), len(new), bodies)
        write_batch_in_tx(driver_connection(connection), destination("events", "append", (), None), everything)
        return Published(len(new), "test")

    return Work(lambda _: "public.events", publish)


class TestTheServersHost:
    """Postgres's host vanishes; or a firewall between drops what goes one way."""

    @pytest.mark.parametrize("lost", _DIRECTIONS)
    @pytest.mark.parametrize("moment", ["between batches", "in COPY", "at COMMIT"])
    def test_a_commit_notices_and_goes_on(self, moment, lost, vanishing, observer, is_tried_again, monkeypatch):
        """The try is given up within the bound, whatever it was at, and the next one finds what became of it."""
        given = settings(vanishing.url(), retry_timeout=PATIENCE_SECONDS)
        commit_batch(given, make_batch(0), publishing(0))
        with Gone(vanishing.black_hole(lost), is_tried_again) as gone:
            steps = [gone.now]
            if moment == "between batches":
                gone.now()
            elif moment == "at COMMIT":
                # The last step before COMMIT, in the same round trip.
                recorded = one_try._record_in_tx
                monkeypatch.setattr(one_try, "_record_in_tx", lambda *of: (recorded(*of), steps and steps.pop()()))
            verdict = commit_batch(
                given, make_batch(1), publishing(1, then=gone.now) if moment == "in COPY" else publishing(1)
            )
        assert verdict is (Verdict.LANDED if (moment, lost) == ("at COMMIT", "answers") else Verdict.NEW)
        assert ids(observer) == [0, 1]

    @pytest.mark.parametrize("lost", _DIRECTIONS)
    def test_a_task_that_stages_notices_and_goes_on(self, lost, vanishing, observer, is_tried_again):
        """A COPY into the staging table is begun again under another mark."""
        table = StagingTable("query", "events", "run", 7)
        with Gone(vanishing.black_hole(lost), is_tried_again) as gone:

            def source():
                yield arrow_rows(STRUCT, [(1, "one")])
                gone.now()
                yield arrow_rows(STRUCT, [(2, "two")])

            promised = Stager(vanishing.url(), table, STRUCT, 3, PATIENCE_SECONDS).stage(source())
        assert sum(count for _, count in promised) == 2
        wanted = observer.execute(
            f"SELECT id FROM {table.qualified_name} WHERE {ATTEMPT_COLUMN} = ANY(%s) ORDER BY id".encode(),
            [[mark for mark, _ in promised]],
        )
        assert wanted.fetchall() == [(1,), (2,)]

    def test_the_listener_notices_and_goes_on(self, vanishing, observer):
        """Events are dropped and counted, and later ones are stored."""
        listener = OffsetsListener(vanishing.url())
        try:
            listener.onQueryProgress(Event(0))
            assert wait_until(lambda: listener.stored == 1, PATIENCE_SECONDS)
            with Gone(vanishing.black_hole(), lambda: listener.dropped) as gone:
                gone.now()
                listener.onQueryProgress(Event(1))
            listener.onQueryProgress(Event(2))
            assert wait_until(lambda: listener.stored == 2, PATIENCE_SECONDS)
        finally:
            listener.close()


class TestTheClientsHost:
    """A driver's or an executor's host vanishes: no session of it stays, and no lock."""

    @pytest.mark.parametrize("answers", ["acknowledged", "under way"])
    def test_a_commit_that_holds_the_writer(self, answers, vanishing, observer):
        """The server ends the session within the bound: its answer is not acknowledged, or no keepalive is."""
        commit_batch(settings(vanishing.url()), make_batch(0), publishing(0))
        with engine_for(vanishing.url()).connect() as connection:
            begin_in_tx(connection, "pgonce gone", 5)
            lock_writer_in_tx(connection, make_batch(1, sink_name="public.events"), None)
            with vanishing.black_hole():
                if answers == "under way":
                    connection.connection.driver_connection.pgconn.send_query(b"SELECT pg_sleep(0.5)")
                assert wait_until(lambda: not sessions(observer, "pgonce gone"), _SOON_SECONDS)
                observer.execute("SELECT FROM pgonce.writers FOR UPDATE NOWAIT")
            connection.invalidate()

    def test_a_task_that_stages(self, vanishing, observer):
        """Its COPY is over, and the sweep can drop the table."""
        table = StagingTable("query", "events", "run", 7)
        left = "SELECT pid FROM pg_locks WHERE relation = to_regclass(%s) AND pid <> pg_backend_pid()"

        def bodies():
            yield CopyEncoder(STRUCT, extra={ATTEMPT_COLUMN: 1}).encode(arrow_rows(STRUCT, [(1, "one")]))
            assert wait_until(lambda: observer.execute(left, [f"{table.qualified_name}"]).fetchall(), PATIENCE_SECONDS)
            with vanishing.black_hole():
                assert wait_until(
                    lambda: not observer.execute(left, [f"{table.qualified_name}"]).fetchall(), _SOON_SECONDS
                )

        with pytest.raises(psycopg.OperationalError):
            stage_rows(vanishing.url(), table, encoded_columns(STRUCT), bodies())


class TestBounds:
    """What holds where url says nothing, and what it can say."""

    def test_a_silent_line_is_dead_after_a_minute_by_default(self, vanishing):
        """A silent line is dead after a minute, at both ends, by keepalives or because nothing is acknowledged."""
        with connect(vanishing.server.tcp_uri(vanishing.database)) as connection:
            assert socket_bounds(connection) == (60_000, 30, 10, 3)
            enter_in_tx(connection)
            assert bounds_in(connection) == ("60000", "30", "10", "3")
            connection.rollback()
            assert bounds_in(connection)[0] == "0"

    @pytest.mark.parametrize(
        ("given", "bounds"),
        [
            ("keepalives_idle=5&keepalives_interval=4&keepalives_count=2", (13_000, 5, 4, 2)),
            ("tcp_user_timeout=7000", (7000, 30, 10, 3)),
            ("tcp_user_timeout=0", (0, 30, 10, 3)),
        ],
    )
    def test_bounds_that_url_sets_take_the_place_of_ours(self, given, bounds, vanishing):
        """Keepalives of the user's bound what is unacknowledged too; a bound of the user's stays as it is."""
        with connect(f"{vanishing.server.tcp_uri(vanishing.database)}?{given}") as connection:
            assert socket_bounds(connection) == bounds
            enter_in_tx(connection)
            assert bounds_in(connection) == tuple(map(str, bounds))

    @pytest.mark.parametrize(("lock_timeout", "expected"), [(30, 60_000), (600, 630_000), (5, 60_000)])
    def test_a_commit_may_wait_longer_for_a_lock(self, lock_timeout, expected, vanishing):
        """A COPY that waits for a lock takes no rows: its line is not dead before that wait is over, or url says so."""
        for url, bound in ((vanishing.server.tcp_uri(vanishing.database), expected), (vanishing.url(), 2000)):
            with connect(url) as connection:
                outlast_locks(connection, url, lock_timeout)
                assert socket_bounds(connection)[0] == bound


def socket_bounds(connection):
    """TCP_USER_TIMEOUT in ms, and the keepalives, of a connection's socket."""
    with socket.socket(fileno=socket.dup(connection.fileno())) as line:
        names = ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
        return tuple(line.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names)


def bounds_in(connection):
    """The server's bounds, as they are in force."""
    names = ("tcp_user_timeout", "tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count")
    return connection.execute(f"SELECT {', '.join(f'current_setting({name!r})' for name in names)}").fetchone()
