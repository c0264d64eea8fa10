"""
The commit itself, without Spark: locks, lost answers, retention, takeovers, and what a try leaves behind.

Covers: offsets_store.commit.one_transaction, offsets_store.commit.one_try, offsets_store.commit.work,
offsets_store.ledger.lock, offsets_store.ledger.record, offsets_store.postgres.connect.
"""

from __future__ import annotations

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest
from support.audit import waiting_commits
from support.batches import make_batch
from support.blocked import wait_for_queue
from support.committed_rows import appending, ids, rows, settings
from support.fixtures.driver import wait_until
from support.fixtures.postgres import url_with
from support.gate import gate
from support.patience import PATIENCE_SECONDS
from support.recoveries import only_sink
from support.with_rooms import work_into

from pgonce.offsets_store.commit.one_transaction import application_name
from pgonce.offsets_store.commit.retrying import commit_batch, what_became_of
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.failures import kept_words
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.recovery.by_hand import accept
from pgonce.sink.options.destination import destination

pytestmark = pytest.mark.usefixtures("events")


def test_rows_offsets_and_batch_id_are_written_together(admin, url):
    """A new batch leaves its rows, its record and the writer's new end."""
    assert commit_batch(settings(url), make_batch(0), appending(1, 2)) is Verdict.NEW
    assert commit_batch(settings(url), make_batch(1), appending(3)) is Verdict.NEW
    assert ids(admin) == [1, 2, 3]
    record = admin.execute("SELECT batch_id, rows, end_offsets, offset_log FROM pgonce.batches ORDER BY 1").fetchall()
    assert record == [
        (0, 2, {"0": {"t": {"0": 10}}}, "planned once 0"),
        (1, 1, {"0": {"t": {"0": 20}}}, "planned once 1"),
    ]
    assert admin.execute("SELECT last_batch_id, end_offsets, run_id FROM pgonce.writers").fetchall() == [
        (1, {"0": {"t": {"0": 20}}}, "run 1")
    ]


def test_a_replay_is_skipped_recorded_and_changes_no_owner(admin, url):
    """A restart that runs the last batch again writes nothing, and leaves the writer to its owner."""
    commit_batch(settings(url), make_batch(0), appending(1))
    assert commit_batch(settings(url), make_batch(0, run_id="run 2"), appending(1)) is Verdict.REPLAY
    assert ids(admin) == [1]
    assert admin.execute("SELECT run_id FROM pgonce.writers").fetchone() == ("run 1",)
    assert admin.execute("SELECT batch_id, run_id FROM pgonce.replays").fetchall() == [(0, "run 2")]
    # The old run is no zombie: nobody has published since.
    assert commit_batch(settings(url), make_batch(1), appending(2)) is Verdict.NEW


def test_a_run_whose_writer_another_run_took_is_fenced(admin, url):
    """Once another run has published, the old owner may not, and hears who owns the writer now."""
    commit_batch(settings(url), make_batch(0), appending(1))
    commit_batch(settings(url), make_batch(1, run_id="run 2"), appending(2))
    with pytest.raises(PgonceError, match="FENCED.*run 2"):
        commit_batch(settings(url), make_batch(2), appending(3))
    assert ids(admin) == [1, 2]


@pytest.mark.parametrize("fault", ["cut_before_commit", "cut_after_commit", "cut_during_commit", "cut_in_copy"])
def test_a_cut_line_leaves_the_batch_written_once(fault, admin, url, proxy):
    """Wherever the line is cut, the commit finds out by its token whether it was done, and ends as published."""
    commit_batch(settings(url), make_batch(0), appending(1))
    getattr(proxy, fault)(touching="events")
    verdict = commit_batch(settings(proxy.url), make_batch(1), appending(2, 3))
    assert proxy.hits[fault] == 1
    if fault == "cut_after_commit":
        assert verdict is Verdict.LANDED
    assert ids(admin) == [1, 2, 3]
    assert admin.execute("SELECT count(*) FROM pgonce.replays").fetchone() == (0,)


def test_an_outcome_that_cannot_be_asked_for_is_called_unknown(admin, url, proxy):
    """Where the answer to COMMIT is lost and Postgres stays away, the error claims neither failure nor success."""
    commit_batch(settings(url), make_batch(0), appending(1))
    hold = proxy.hold_after_commit(touching="events")
    lost = threading.Timer(0, lambda: (hold.wait(), proxy.stop()))
    lost.start()
    again = make_batch(1)
    with pytest.raises(PgonceError, match="COMMIT_UNKNOWN"):
        commit_batch(settings(proxy.url, retry_timeout=2), again, appending(2))
    lost.join()
    assert commit_batch(settings(url), replace(again, attempt=uuid.uuid4(), run_id="run 2"), appending(2)) in (
        Verdict.REPLAY,
        Verdict.NEW,
    )
    assert ids(admin) == [1, 2]


def test_a_server_that_comes_back_in_time_is_no_failure(admin, url, proxy):
    """While Postgres is away the commit tries again, up to its bound."""
    ensure_ledger(proxy.url)
    proxy.stop()
    threading.Timer(1.0, proxy.start).start()
    assert commit_batch(settings(proxy.url, retry_timeout=20), make_batch(0), appending(1)) is Verdict.NEW
    assert ids(admin) == [1]


def test_what_was_accepted_ends_with_the_next_batch(admin, url):
    """It was accepted for a ledger that stood elsewhere, so a gap before that number is one again."""
    for number in range(2):
        commit_batch(settings(url), make_batch(number), appending(number))
    accept(url, only_sink(url, "q1"), 5, "we can live without them")
    commit_batch(settings(url), make_batch(2), appending(2))
    with pytest.raises(PgonceError, match="GAP"):
        commit_batch(settings(url), make_batch(5), appending(5))
    assert ids(admin) == [0, 1, 2]


def test_a_lock_of_somebody_else_is_waited_for_and_then_named(admin, url, caplog):
    """Past the bound the error names the session and its statement, cut where a text begins: it may be a password."""
    ensure_ledger(url)
    with psycopg.connect(url, application_name="nightly report") as holder:
        holder.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        holder.execute("CREATE ROLE somebody PASSWORD 'zq7hunter'")
        with pytest.raises(
            PgonceError, match="LOCKED.*nightly report.* query: CREATE ROLE somebody PASSWORD "
        ) as refused:
            commit_batch(settings(url, retry_timeout=1), make_batch(0), appending(1))
        holder.rollback()
    assert "zq7" not in str(refused.value) + caplog.text
    # Who lacks the driver's log finds the holder too.
    assert "nightly report" in kept_words(refused.value)
    assert ids(admin) == []
    assert commit_batch(settings(url), make_batch(0), appending(1)) is Verdict.NEW


def test_a_commit_that_waits_holds_its_writers_row(admin, url):
    """While a batch waits for its table, no other driver of its writer can begin."""
    commit_batch(settings(url), make_batch(0), appending(1))
    with psycopg.connect(url) as holder:
        holder.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        patient = settings(url, lock_timeout=60, retry_timeout=60)
        waiting = threading.Thread(target=commit_batch, args=[patient, make_batch(1), appending(2)])
        waiting.start()
        assert wait_until(lambda: waiting_commits(admin), PATIENCE_SECONDS)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            admin.execute("SELECT FROM pgonce.writers FOR UPDATE NOWAIT")
    waiting.join(PATIENCE_SECONDS)
    assert ids(admin) == [1, 2]


@pytest.mark.parametrize("tables", [("parts", "low"), ("low", "parts")])
def test_new_queries_of_a_table_and_of_its_partition_meet(admin, url, tables):
    """Each would feed the other's table, so the second one waits for the first, and then hears of it."""
    admin.execute(
        "CREATE TABLE parts (id bigint, name text) PARTITION BY RANGE (id); "
        "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (100)"
    )
    ensure_ledger(url)

    def commit(query, table):
        work = work_into(None, destination(table), rows(1))
        batch = make_batch(0, f"run of {query}", query_id=query)
        return commit_batch(settings(url, lock_timeout=20), batch, work)

    with ThreadPoolExecutor(2) as pool:
        with gate(url, "low" if tables[0] == "low" else "parts") as waiting:
            first = pool.submit(commit, "one", tables[0])
            assert wait_until(lambda: admin.execute(waiting.encode()).fetchone() == (1,))
            second = pool.submit(commit, "other", tables[1])
            wait_for_queue(admin)
        assert first.result() is Verdict.NEW
        with pytest.raises(PgonceError, match="FOREIGN"):
            second.result()
    assert ids(admin, "parts") == [1]


def test_another_querys_first_batch_is_waited_for(admin, url):
    """New writers of one sink come in one by one: one that is busy with its first batch is not ended for the next."""
    ensure_ledger(url)
    slow = appending(1)
    begun, go_on = threading.Event(), threading.Event()

    def wait_and_publish(connection, one, stored):
        begun.set()
        go_on.wait(30)
        return slow.publish(connection, one, stored)

    hasty = settings(url, remedies=Remedies(independent=True), lock_timeout=0.5, retry_timeout=30)
    held = "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgonce run 1' AND state LIKE 'idle in%'"
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(commit_batch, hasty, make_batch(0), replace(slow, publish=wait_and_publish))
        assert begun.wait(30)
        (holder,) = admin.execute(held).fetchall()
        second = pool.submit(commit_batch, hasty, make_batch(0, "run 2", query_id="q2"), appending(2))
        # Time for two waits in vain, the second with somebody who looks.
        time.sleep(3)
        assert not second.done()
        assert admin.execute(held).fetchall() == [holder]
        go_on.set()
        assert first.result(30) is second.result(30) is Verdict.NEW
    assert ids(admin) == [1, 2]


def test_a_frozen_driver_that_holds_the_writer_is_ended(admin, url):
    """A stopped process of ours must not hold its successor for ever: its uncommitted transaction is aborted."""
    commit_batch(settings(url), make_batch(0), appending(1))
    with psycopg.connect(url, application_name=application_name("run 0")) as frozen:
        frozen.execute("SELECT * FROM pgonce.writers FOR UPDATE")
        assert commit_batch(settings(url, retry_timeout=20), make_batch(1), appending(2)) is Verdict.NEW
        with pytest.raises(psycopg.OperationalError):
            frozen.execute("SELECT 1")
    assert ids(admin) == [1, 2]


def test_a_strangers_session_that_holds_the_writer_is_left_alone(admin, url):
    """A person who looks at the ledger FOR UPDATE is named, never ended."""
    commit_batch(settings(url), make_batch(0), appending(1))
    with psycopg.connect(url, application_name="psql") as person:
        person.execute("SELECT * FROM pgonce.writers FOR UPDATE")
        with pytest.raises(PgonceError, match="LOCKED.*psql"):
            commit_batch(settings(url, retry_timeout=1), make_batch(1), appending(2))
        person.execute("SELECT 1")
    assert ids(admin) == [1]


def test_sessions_settings_are_left_as_they_were(admin, url):
    """What a commit sets is gone with its transaction: behind a pooler the session is somebody else's next."""
    seen = []

    def look(connection, *_):
        names = ("statement_timeout", "application_name")
        seen.append([connection.exec_driver_sql(f"SHOW {name}").scalar() for name in names])
        return Published(0, "test")

    work = Work(lambda _: "public.events", look)
    commit_batch(settings(url_with(url, options="-cstatement_timeout=5000")), make_batch(0), work)
    assert seen == [["0", "pgonce run 1"]]
    left = admin.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgonce run 1' AND datname = current_database()"
    ).fetchone()
    assert left == (0,)


def test_old_records_are_pruned_and_the_newest_are_kept(admin, url):
    """The ledger keeps retainBatches records; a batch whose record is gone is refused, not guessed."""
    for n in range(150):
        commit_batch(settings(url, retain_batches=100), make_batch(n), appending(n))
    kept = [row[0] for row in admin.execute("SELECT batch_id FROM pgonce.batches ORDER BY 1").fetchall()]
    assert kept[-1] == 149
    assert 100 <= len(kept) < 100 + 16
    with pytest.raises(PgonceError, match="CHANGED"):
        commit_batch(settings(url), make_batch(3, run_id="run 2"), appending(3))
    assert len(ids(admin)) == 150


def test_a_new_query_takes_the_place_of_another(admin, url):
    """With replaces, batch 0 begins at the old end, and the old query may publish no more."""
    commit_batch(settings(url), make_batch(0), appending(1))
    fresh = {"query_id": "q2", "run_id": "run 9", "start": {"0": {"t": {"0": 10}}}, "end": {"0": {"t": {"0": 20}}}}
    with pytest.raises(PgonceError, match="FOREIGN.*replaces=q1"):
        commit_batch(settings(url), make_batch(0, **fresh), appending(2))
    wrong = {**fresh, "start": {"0": {"t": {"0": 0}}}}
    with pytest.raises(PgonceError, match="FOREIGN"):
        commit_batch(settings(url, remedies=Remedies(replaces="q1")), make_batch(0, **wrong), appending(1, 2))
    replacing = settings(url, remedies=Remedies(replaces="q1"))
    assert commit_batch(replacing, make_batch(0, **fresh), appending(2)) is Verdict.NEW
    with pytest.raises(PgonceError, match="FENCED.*q2"):
        commit_batch(settings(url), make_batch(1), appending(3))
    assert ids(admin) == [1, 2]


@pytest.mark.parametrize("all_known", [True, False])
def test_what_a_replaced_query_has_read_is_remembered(all_known, admin, url):
    """Its rows stay, so a third query that reads the same would write them once more."""
    commit_batch(settings(url), make_batch(0), appending(1))
    sources = '{"kafka": {"t": [0], "dropped": [0]}}' if all_known else None
    admin.execute("UPDATE pgonce.writers SET sources = %s", [sources])
    fresh = {"query_id": "q2", "run_id": "run 9", "start": {"0": {"t": {"0": 10}}}, "end": {"0": {"t": {"0": 20}}}}
    commit_batch(settings(url, remedies=Remedies(replaces="q1")), make_batch(0, **fresh), appending(2))
    third = {"start": {"0": {"dropped": {"0": 0}}}, "end": {"0": {"dropped": {"0": 5}}}}
    with pytest.raises(PgonceError, match="FOREIGN"):
        commit_batch(settings(url), make_batch(0, query_id="q3", run_id="run 3", **third), appending(3))
    assert ids(admin) == [1, 2]


def test_a_refused_batch_leaves_no_trace(admin, url):
    """A refusal rolls back: no row, no record, no writer."""
    with pytest.raises(PgonceError, match="UNKNOWN.*adoptCheckpoint=7"):
        commit_batch(settings(url), make_batch(7), appending(7))
    assert ids(admin) == []
    assert admin.execute("SELECT count(*) FROM pgonce.writers").fetchone() == (0,)


def test_a_running_job_is_adopted_whether_or_not_its_last_batch_was_written(admin, url):
    """adoptCheckpoint=N publishes from N on; adoptCheckpoint=N+1 records N as done and goes on."""
    other = {"query_id": "q2"}
    from_7_on = settings(url, remedies=Remedies(adopt_checkpoint=7))
    assert commit_batch(from_7_on, make_batch(7), appending(7)) is Verdict.NEW
    adopt = settings(url, remedies=Remedies(adopt_checkpoint=8))
    assert commit_batch(adopt, make_batch(7, **other), appending(70)) is Verdict.ADOPTED
    assert commit_batch(adopt, make_batch(8, **other), appending(80)) is Verdict.NEW
    assert ids(admin) == [7, 80]


class TestAQuestion:
    """What became of a batch that another process may have published is asked under the writer's lock."""

    def test_what_is_not_there_is_not_written(self, admin, url):
        """The verdict says that the batch could be published; nothing was written, and it still can be."""
        commit_batch(settings(url), make_batch(0), appending(1))
        asked = make_batch(1)
        assert what_became_of(settings(url), asked, lambda _: "public.events") is Verdict.NEW
        assert admin.execute("SELECT last_batch_id FROM pgonce.writers").fetchall() == [(0,)]
        assert commit_batch(settings(url), asked, appending(2)) is Verdict.NEW

    def test_a_batch_that_is_there_is_skipped(self, admin, url):
        """The same attempt has landed, and another run's is a replay that is noted as skipped."""
        done = make_batch(0)
        commit_batch(settings(url), done, appending(1))
        assert what_became_of(settings(url), done, lambda _: "public.events") is Verdict.LANDED
        again = make_batch(0, run_id="run 2")
        assert what_became_of(settings(url), again, lambda _: "public.events") is Verdict.REPLAY
        assert admin.execute("SELECT batch_id, run_id FROM pgonce.replays").fetchall() == [(0, "run 2")]

    def test_a_batch_that_must_not_follow_is_refused(self, admin, url):
        """The error is that of a commit."""
        commit_batch(settings(url), make_batch(0), appending(1))
        with pytest.raises(PgonceError, match="GAP"):
            what_became_of(settings(url), make_batch(5), lambda _: "public.events")


def test_a_session_that_is_ended_because_it_was_idle_costs_one_try(admin, url):
    """The role's idle_session_timeout ends it after the pool has looked at it, and before its first statement."""
    tries = []

    def name_sink(_):
        tries.append("public.events")
        if len(tries) == 1:
            time.sleep(1)
        return tries[-1]

    work = replace(appending(1), name_sink=name_sink)
    its_url = url_with(url, options="-cidle_session_timeout=200")
    assert commit_batch(settings(its_url), make_batch(0), work) is Verdict.NEW
    assert ids(admin) == [1]
    assert len(tries) > 1
