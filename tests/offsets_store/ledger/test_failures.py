"""What went wrong is kept in the ledger, best effort and without values of rows."""

from __future__ import annotations

import logging
import socket
import time
from contextlib import closing
from uuid import uuid4

import psycopg
import pytest
from support.ledger_history import QUERY, RUN, publish

from pgonce.offsets_store.errors import NOTHING, CommitError, ConfigurationError, PgonceError, TargetError
from pgonce.offsets_store.ledger import failures
from pgonce.offsets_store.ledger.failures import NOT_KEPT, Failed, failures_kept, keep_failure, kept_words
from pgonce.offsets_store.ledger.migrations import ensure_ledger, grants
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.sink.errors import EncodingError, TypeMappingError

BATCH = Failed(seen_by="commit", query_id=QUERY, query_name="orders", run_id=RUN, batch_id=3)
REFUSED = CommitError("TARGET_CHANGED", "The table is another one.", NOTHING, "Look.")


@pytest.fixture
def ledger(url):
    """A ledger with all migrations."""
    ensure_ledger(url)
    return url


def of_listener(run_id=RUN):
    """A run that a listener has heard end."""
    return Failed(seen_by="listener", query_id=QUERY, run_id=run_id)


class TestKeeping:
    def test_the_same_failure_is_counted(self, ledger):
        """One row a query, sink, run, batch and code: it says how often, and when first and last."""
        for what in ("once", "twice"):
            keep_failure(ledger, BATCH, "LOCKED", what, "public.orders")
        keep_failure(ledger, BATCH, "TARGET_MISSING", "gone", "public.orders")
        other, failure = OffsetsStore(ledger).failures()
        assert (other.code, failure.code, failure.attempts, failure.message) == ("TARGET_MISSING", "LOCKED", 2, "twice")
        assert failure.first_at < failure.last_at
        assert (failure.query_name, failure.sink_name, failure.batch_id) == ("orders", "public.orders", 3)

    def test_the_newest_of_a_query_stay(self, ledger, observer, monkeypatch):
        """Old rows of the query go, and not those of others."""
        monkeypatch.setattr(failures, "KEPT_A_QUERY", 4)
        keep_failure(ledger, Failed(seen_by="planner", query_id="another"), "LOCKED", "old")
        for number in range(7):
            keep_failure(ledger, Failed(seen_by="commit", query_id=QUERY, batch_id=number), "LOCKED", "new")
        kept = observer.execute("SELECT batch_id FROM pgonce.failures ORDER BY failure_id").fetchall()
        assert kept == [(None,), (3,), (4,), (5,), (6,)]

    def test_text_that_would_forge_a_line(self, ledger):
        """Passwords and line breaks of a message are not kept as they are."""
        keep_failure(ledger, BATCH, "LOCKED", "postgresql://me:s3cret@host/db failed\nnow\0")
        (message,) = [failure.message for failure in OffsetsStore(ledger).failures()]
        assert "s3cret" not in message
        assert message.isprintable()

    def test_an_error_leaves_as_it_came(self, ledger):
        """The very error is raised, after it was kept."""
        with pytest.raises(CommitError) as raised, failures_kept(ledger, BATCH):
            raise REFUSED
        assert raised.value is REFUSED
        (failure,) = OffsetsStore(ledger).failures()
        assert (failure.code, failure.remedy) == ("TARGET_CHANGED", "Look.")

    def test_other_errors_are_left_to_the_listener(self, ledger):
        """A query that a person stops in the middle of a batch raises them too."""
        with pytest.raises(ZeroDivisionError), failures_kept(ledger, BATCH):
            raise ZeroDivisionError
        assert OffsetsStore(ledger).failures() == []


class TestBestEffort:
    def test_a_server_that_does_not_answer(self):
        """The error is raised after two seconds at most."""
        with closing(socket.create_server(("127.0.0.1", 0))) as silent:
            url = f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/db"
            began = time.monotonic()
            with pytest.raises(CommitError) as raised, failures_kept(url, BATCH):
                raise REFUSED
        assert raised.value is REFUSED
        assert time.monotonic() - began < failures.LONGEST_SECONDS + 1

    def test_a_lock_on_the_table(self, ledger, admin):
        """It is not waited for, neither here nor by the session."""
        with psycopg.connect(ledger) as holder:
            holder.execute("LOCK TABLE pgonce.failures IN ACCESS EXCLUSIVE MODE")
            began = time.monotonic()
            keep_failure(ledger, BATCH, "LOCKED", "held")
            assert time.monotonic() - began < failures.LONGEST_SECONDS + 1
        assert OffsetsStore(ledger).failures() == []

    @pytest.mark.parametrize(
        "broken_by",
        [
            "DROP SCHEMA pgonce CASCADE",
            "DROP TABLE pgonce.failures CASCADE",
            "ALTER TABLE pgonce.failures DROP COLUMN remedy CASCADE",
            "REVOKE ALL ON pgonce.failures FROM {}",
        ],
    )
    def test_a_ledger_that_cannot_take_it(self, ledger, admin, login, caplog, broken_by):
        """Nothing is raised, and it is said once, for information."""
        caplog.set_level(logging.INFO, "pgonce")
        admin.execute("; ".join([*grants(login.user), broken_by.format(login.user)]).encode())
        for _ in range(2):
            keep_failure(login.url, BATCH, "LOCKED", "lost")
        said = [record for record in caplog.records if "pgonce.failures" in record.getMessage()]
        assert [record.levelno for record in said] == [logging.INFO]


class TestWords:
    @pytest.mark.parametrize(
        ("error", "kept"),
        [
            (ConfigurationError("BAD_OPTION", "mode=odd is unknown.", NOTHING, "Look."), "mode=odd is unknown."),
            (TypeMappingError("TYPE_UNSUPPORTED", "Column c is odd.", NOTHING, "Look."), "Column c is odd."),
            (TargetError("COLUMN_UNKNOWN", "t has no column c.", NOTHING, "Look."), "t has no column c."),
            (TargetError("DOUBLED_KEYS", "Key 77 is there twice.", NOTHING, "Look."), NOT_KEPT),
            (EncodingError("NUL_IN_TEXT", "Value 'x' has a NUL.", NOTHING, "Look."), NOT_KEPT),
            (PgonceError("NEW_ONE", "Nobody knows it yet.", NOTHING, "Look."), NOT_KEPT),
        ],
    )
    def test_what_may_show_a_row_is_not_kept(self, error, kept):
        """Sentences of names, ids and counts are kept; of other families and codes, nothing is."""
        assert kept_words(error) == kept

    def test_what_an_error_says_of_itself_comes_first(self):
        """A sentence that was made of names alone takes the place of the other."""
        error = TargetError("CHECK_VIOLATION", "Row (1, 'x') is refused.", NOTHING, "Look.")
        error.kept = "Constraint c refused it."
        assert kept_words(error.beginning("Here")) == "Constraint c refused it."


class TestListener:
    def test_what_the_commit_has_kept_is_not_listed_twice(self, ledger):
        """When Spark says that the run has ended, its reason is there already; that of another run is not."""
        keep_failure(ledger, BATCH, "LOCKED", "held")
        keep_failure(ledger, of_listener(), "LOCKED", "it ended")
        assert [failure.seen_by for failure in OffsetsStore(ledger).failures()] == ["commit"]
        keep_failure(ledger, of_listener(str(uuid4())), "LOCKED", "it ended")
        assert [failure.seen_by for failure in OffsetsStore(ledger).failures()] == ["listener", "commit"]

    def test_what_the_planner_has_kept_is_not_listed_twice(self, ledger):
        """The planner does not know the run: what it has seen since the run began is of that run."""
        planned = Failed(seen_by="planner", query_id=QUERY, batch_id=0)
        keep_failure(ledger, planned, "TARGET_MISSING", "no table")
        keep_failure(ledger, of_listener(), "TARGET_MISSING", "it ended")
        assert [failure.seen_by for failure in OffsetsStore(ledger).failures()] == ["planner"]

    def test_queries_that_do_not_write_here(self, ledger):
        """An error that is not ours is kept only of a query that has published."""
        keep_failure(ledger, of_listener(), "STREAM_FAILED", "it ended", is_ours=False)
        assert OffsetsStore(ledger).failures() == []
        publish(ledger, 0, {"0": 1})
        keep_failure(ledger, of_listener(), "STREAM_FAILED", "it ended", is_ours=False)
        assert [failure.code for failure in OffsetsStore(ledger).failures()] == ["STREAM_FAILED"]
