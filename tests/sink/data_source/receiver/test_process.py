"""
The receiver as a process of its own: who is heard, what is left where somebody is killed, and when it ends.

Covers: offsets_store.ledger.session, sink.data_source.offer, sink.data_source.receiver.client,
sink.data_source.receiver.launch, sink.data_source.receiver.sending, sink.identity.planned_batch.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pyarrow as pa
import pytest
from support.committed_rows import STRUCT, ids
from support.data_source_with_rooms import commit_parcels, planned_reception, receiver_for
from support.fixtures.driver import wait_until
from support.ledger_history import QUERY, RUN
from support.patience import PATIENCE_SECONDS
from support.received_batch import SENT, body, copies, in_copy, name_of, origin, parcels, send
from support.signals import strike

from pgonce.offsets_store.commit.one_transaction import application_name
from pgonce.offsets_store.commit.retrying import unknown_outcome
from pgonce.offsets_store.errors import CommitError, PgonceError
from pgonce.offsets_store.ledger.session import is_recorded
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.data_source.offer import offered
from pgonce.sink.data_source.parcel import Parcel
from pgonce.sink.data_source.promise import Promise
from pgonce.sink.data_source.receiver import client, launch, process, sending
from pgonce.sink.data_source.receiver.messages import ReceiverError, error_as_message, error_from_message, lost
from pgonce.sink.data_source.receiver.process import Receptions
from pgonce.sink.data_source.stager import Stager
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.identity.planned_batch import staging_table
from pgonce.sink.positions import EncodedRows

HOST = "127.0.0.1"


def recorded(target):
    """Rows, transport and token of batch 1 in the ledger."""
    return target.execute("SELECT rows, transport, attempt FROM pgonce.batches WHERE batch_id = 1").fetchall()


def kept_files(receiver):
    """The files of the batches whose rows a receiver keeps."""
    return [path for path in Path(receiver.folder).glob("*") if path.name != "processes"]


def wide_rows(count):
    """Rows of half a megabyte, each encoded and as it is."""
    for one in range(count):
        row = pa.record_batch({"id": pa.array([one], pa.int64()), "name": pa.array(["x" * 500_000])})
        yield EncodedRows(CopyEncoder(STRUCT).encode(row), 1), row


def sent_and_staged(receiver, options, encoded, attempt_id=1):
    """What a task does with its rows: the parcel, and how many of them the receiver has kept."""
    taken = receiver.call().send_rows(origin(), 0, attempt_id, encoded)
    left = itertools.chain(taken.left, (row for _, row in encoded))
    staged = Stager(options.staging_url, staging_table(options, origin()), STRUCT, attempt_id, 10).stage(left)
    rows = taken.rows + sum(count for _, count in staged)
    received = (attempt_id, taken.rows) if taken.rows else None
    return Parcel(origin(), 0, rows, staged=staged, received=received, offer=offered(receiver)), taken.rows


def be_impatient(receiver, monkeypatch):
    """Wait a few seconds for the receiver, no more; it has started by now."""
    receiver.dial().close()
    for module in (client, sending):
        monkeypatch.setattr(module, "SILENCE_SECONDS", 5)


def kill(process):
    """With SIGKILL; it is gone afterwards."""
    process.kill()
    process.wait()


@contextmanager
def commit_under_way(settings, receiver, hold):
    """A commit whose COMMIT is held while the block runs; what comes of it."""
    with ThreadPoolExecutor() as pool:
        committing = pool.submit(commit_parcels, settings, encoded_columns(STRUCT), parcels(receiver), 1)
        hold.wait()
        yield committing


def is_gone(process, seconds=10):
    """Whether the process ends in time."""
    return wait_until(lambda: process.poll() is not None, seconds)


def test_a_receiver_of_another_version_takes_no_rows(target, receiver_options, started_receivers, monkeypatch):
    """Where another version was installed since the planner's worker began, its tasks stage their rows."""
    monkeypatch.setattr(launch, "LOADED_VERSION", "0.0.9")
    receiver = receiver_for(receiver_options(), STRUCT)
    # A call has it start, which takes its time.
    assert send(receiver, 1, 2) is None
    assert is_gone(started_receivers[0], PATIENCE_SECONDS)
    assert send(receiver, 1, 2) is None


def test_an_attempt_whose_rows_fail_on_the_way_is_not_waited_for(target, receiver_options):
    """The task's own error passes as it is; the receiver takes the next attempt's rows instead."""

    def failing():
        yield body(1)
        raise RuntimeError("upstream fails")

    receiver = receiver_for(receiver_options(), STRUCT)
    with pytest.raises(RuntimeError, match="upstream fails"):
        receiver.call().send_rows(origin(), 0, 1, failing())
    assert send(receiver, 1, 2, attempt_id=2) == 2
    assert receiver.finish(origin(), Promise("received", {0: (2, 2)})) is Verdict.NEW
    assert ids(target) == [1, 2]


def test_an_error_of_the_commit_is_the_one_that_it_would_be_without_a_receiver(target, receiver_options):
    """Its code, its words and its kind come over the line."""
    target.execute("ALTER TABLE events ADD CONSTRAINT small CHECK (id < 2)")
    receiver = receiver_for(receiver_options(), STRUCT)
    send(receiver, 1, 2)
    with pytest.raises(PgonceError, match="CHECK_VIOLATION.*small") as refused:
        receiver.finish(origin(), SENT)
    assert type(refused.value).__name__ == "TargetError"
    assert name_of(2) not in str(refused.value)
    assert ids(target) == []
    # The receiver does not know whether the commit worker will do without it, so the rows stay until it is given up.
    assert len(kept_files(receiver)) == 1
    receiver.give_up()
    assert kept_files(receiver) == []


LOST = pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])


@LOST
def test_without_its_receiver_a_batch_is_committed_from_what_it_kept(
    fault, target, receiver_options, started_receivers, monkeypatch
):
    """A frozen one is ended, because its transaction holds the writer's row."""
    receiver = receiver_for(receiver_options(), STRUCT)
    send(receiver, 1, 2)
    be_impatient(receiver, monkeypatch)
    began = in_copy(target)
    strike(started_receivers[0].pid, fault)
    assert commit_parcels(receiver_options(), encoded_columns(STRUCT), parcels(receiver), 1) is Verdict.NEW
    assert ids(target) == [1, 2]
    assert target.execute("SELECT DISTINCT xmin::text FROM events").fetchall() != began
    assert recorded(target) == [(2, "received", receiver.token)]
    assert is_gone(started_receivers[0])
    assert kept_files(receiver) == []


def test_rows_that_are_lost_with_their_receiver_fail_the_batch_by_name(target, receiver_options, started_receivers):
    """Nothing is written if the promised rows are not all there."""
    receiver = receiver_for(receiver_options(), STRUCT)
    send(receiver, 1, 2)
    kill(started_receivers[0])
    (file,) = kept_files(receiver)
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(PgonceError, match="RECEIVER_LOST"):
        commit_parcels(receiver_options(), encoded_columns(STRUCT), parcels(receiver), 1)
    assert (ids(target), recorded(target)) == ([], [])


@LOST
def test_a_task_whose_receiver_is_lost_in_the_middle_stages_the_rest(
    fault, target, receiver_options, started_receivers, monkeypatch
):
    """Rows that it was told are kept are committed from the file, the others are staged, and each is there once."""
    receiver = receiver_for(receiver_options(), STRUCT)
    be_impatient(receiver, monkeypatch)
    monkeypatch.setattr(sending, "UNACKNOWLEDGED_BYTES", 2_000_000)

    def struck(rows):
        for number, row in enumerate(rows):
            if number == 25:
                strike(started_receivers[0].pid, fault)
            yield row

    parcel, taken = sent_and_staged(receiver, receiver_options(), struck(wide_rows(40)))
    assert 0 < taken < 40
    assert parcel.staged
    assert commit_parcels(receiver_options(), encoded_columns(STRUCT), [parcel], 1) is Verdict.NEW
    assert ids(target) == list(range(40))
    assert recorded(target) == [(40, "received+staged", receiver.token)]
    assert is_gone(started_receivers[0])
    assert target.execute("SELECT table_name FROM pgonce.staged_tables").fetchall() == []


def test_a_frozen_receiver_does_not_hold_up_a_staged_batch(target, receiver_options, started_receivers, monkeypatch):
    """An attempt that Spark did not choose has begun a transaction there; it is ended with its process."""
    receiver = receiver_for(receiver_options(), STRUCT)
    send(receiver, 1, 2)
    be_impatient(receiver, monkeypatch)
    in_copy(target)
    strike(started_receivers[0].pid, signal.SIGSTOP)
    parcel, taken = sent_and_staged(receiver, receiver_options(), map(body, (1, 2)), attempt_id=2)
    assert taken == 0
    assert commit_parcels(receiver_options(), encoded_columns(STRUCT), [parcel], 1) is Verdict.NEW
    assert ids(target) == [1, 2]
    assert is_gone(started_receivers[0])


def test_a_batch_that_came_inline_does_not_wait_for_what_a_beaten_attempt_has_begun(target, receiver_options):
    """Two attempts of one task: the receiver holds the writer's row for one, and Spark has chosen the other."""
    options = receiver_options(retryTimeout="0")
    receiver = receiver_for(options, STRUCT)
    assert send(receiver, 1, 2) == 2
    in_copy(target)
    rows = tuple(body(one)[0] for one in (1, 2))
    commit_parcels(options, encoded_columns(STRUCT), [Parcel(origin(), 0, 2, inline=rows, offer=offered(receiver))], 1)
    assert ids(target) == [1, 2]
    assert recorded(target) == [(2, "inline", receiver.token)]
    assert kept_files(receiver) == []


@pytest.mark.parametrize("way", ["committed", "failed", "planned again", "failed without its receiver"])
def test_what_is_kept_goes_with_its_batch(way, target, receiver_options, started_receivers):
    """Whoever hears last of a batch removes its rows; what was copied of them is committed or rolled back."""
    receiver = receiver_for(receiver_options(), STRUCT)
    send(receiver, 1, 2)
    in_copy(target)
    assert len(kept_files(receiver)) == 1
    if way == "committed":
        commit_parcels(receiver_options(), encoded_columns(STRUCT), parcels(receiver), 1)
    elif way == "planned again":
        receiver_for(receiver_options(), STRUCT)
    else:
        if way == "failed without its receiver":
            kill(started_receivers[0])
        receiver.give_up()
    assert wait_until(lambda: kept_files(receiver) == [])
    assert wait_until(lambda: not copies(target))
    assert ids(target) == ([1, 2] if way == "committed" else [])


def test_the_next_batch_gets_another_receiver_where_one_was_killed(target, receiver_options, started_receivers):
    """The planner's worker starts a new process, and the batch is run again through it."""
    send(receiver_for(receiver_options(), STRUCT), 1, 2)
    kill(started_receivers[0])
    receiver = receiver_for(receiver_options(), STRUCT)
    send(receiver, 1, 2)
    assert receiver.finish(origin(), SENT) is Verdict.NEW
    assert ids(target) == [1, 2]
    assert len(started_receivers) == 2


@pytest.mark.parametrize("moment", ["hold_before_commit", "hold_after_commit"])
def test_the_ledger_says_what_became_of_a_receiver_that_was_killed(
    moment, target, proxy, receiver_options, started_receivers
):
    """Killed after COMMIT and before its answer, the batch is found landed; killed before it, it is committed again."""
    receiver = receiver_for(receiver_options(url=proxy.url), STRUCT)
    hold = getattr(proxy, moment)(touching="events")
    send(receiver, 1, 2)
    with commit_under_way(receiver_options(url=proxy.url), receiver, hold) as committing:
        kill(started_receivers[0])
        hold.cut()
        assert committing.result() is (Verdict.LANDED if moment == "hold_after_commit" else Verdict.NEW)
    assert ids(target) == [1, 2]
    assert recorded(target) == [(2, "received", receiver.token)]


def test_an_outcome_that_the_ledger_cannot_be_asked_for_is_unknown(target, proxy, receiver_options, started_receivers):
    """Killed after COMMIT, with Postgres away since, the batch is not called one that was not written."""
    small = receiver_options(url=proxy.url, retryTimeout="2")
    receiver = receiver_for(small, STRUCT)
    hold = proxy.hold_after_commit(touching="events")
    send(receiver, 1, 2)
    with commit_under_way(small, receiver, hold) as committing:
        proxy.stop()
        kill(started_receivers[0])
        with pytest.raises(PgonceError, match="COMMIT_UNKNOWN") as unknown:
            committing.result()
    assert "Nothing" not in str(unknown.value)
    assert ids(target) == [1, 2]
    proxy.start()
    # The next start, which Spark makes of the same offsets.
    again, restarted = receiver_for(receiver_options(), STRUCT), replace(origin(), run_id="run 2")
    again.call().send_rows(restarted, 0, 1, map(body, (1, 2)))
    parcel = Parcel(restarted, 0, 2, received=(1, 2), offer=offered(again))
    assert commit_parcels(receiver_options(), encoded_columns(STRUCT), [parcel], 1) is Verdict.REPLAY
    assert ids(target) == [1, 2]


@pytest.mark.parametrize(
    ("error", "family"),
    [(unknown_outcome("No answer."), CommitError), (lost(EOFError(), at_commit=True), ReceiverError)],
)
def test_an_error_of_the_receiver_is_of_the_same_kind_in_the_commit_worker(error, family):
    """What a commit in the receiver leaves unknown is told as it is, and not taken for a receiver that was lost."""
    heard = error_from_message(error_as_message(error))
    assert type(heard) is type(error)
    assert isinstance(heard, family)


def test_a_lost_receiver_and_a_checkpoint_that_has_gone_leave_an_unknown_outcome(
    target, proxy, receiver_options, started_receivers
):
    """While COMMIT may be on its way and the ledger cannot be asked in full, nothing is called unwritten."""
    settings = receiver_options(url=proxy.url, retryTimeout="2")
    receiver = receiver_for(settings, STRUCT)
    hold = proxy.hold_before_commit(touching="events")
    send(receiver, 1, 2)
    with commit_under_way(settings, receiver, hold) as committing:
        shutil.rmtree(settings.checkpoint_location)
        kill(started_receivers[0])
        with pytest.raises(PgonceError, match="COMMIT_UNKNOWN"):
            committing.result()
    hold.cut()


def test_what_the_ledger_is_asked_of_a_done_batch_is_one_statement(target, url, receiver_options):
    """The look into the ledger costs no transaction, and finds the batch by the token that the plan drew."""
    receiver = receiver_for(receiver_options(), STRUCT)
    send(receiver, 1, 2)
    assert commit_parcels(receiver_options(), encoded_columns(STRUCT), parcels(receiver), 1) is Verdict.NEW
    assert is_recorded(url, QUERY, 1, receiver.token)
    assert not is_recorded(url, QUERY, 1, UUID(int=7))
    assert not is_recorded(url, QUERY, 2, receiver.token)
    assert not is_recorded(url, "another", 1, receiver.token)


def test_a_commit_that_means_another_batch_than_the_tasks_is_refused(target, receiver_options):
    """The batch that is committed is the one that both the tasks and the commit messages name."""
    receiver = receiver_for(receiver_options(), STRUCT)
    assert send(receiver, 1, 2) == 2
    assert send(receiver, 3, partition_id=1, batch_id=2) is None
    with pytest.raises(PgonceError, match="RECEIVER_LOST"):
        receiver.finish(origin(2), SENT)
    assert ids(target) == []


def test_a_replay_that_was_seen_early_is_one_for_a_commit_without_the_receiver(
    target, receiver_options, started_receivers
):
    """The receiver skips a published batch and is lost; the commit of staged rows is no second writer for it."""
    settings, columns = receiver_options(), encoded_columns(STRUCT)
    first = receiver_for(settings, STRUCT)
    send(first, 1, 2)
    commit_parcels(settings, columns, parcels(first), 1)
    again, restarted = receiver_for(settings, STRUCT), replace(origin(), run_id="run 2")
    again.call().send_rows(restarted, 0, 1, map(body, (1, 2)))
    assert wait_until(lambda: target.execute("SELECT count(*) FROM pgonce.replays").fetchone() == (1,))
    kill(started_receivers[0])
    staged = Parcel(restarted, 0, 2, staged=((7, 2),), offer=offered(again))
    assert commit_parcels(settings, columns, [staged], 1) is Verdict.REPLAY
    assert ids(target) == [1, 2]


@pytest.mark.parametrize(
    ("idle", "alone", "has_rows", "stays"),
    [(5, False, False, True), (15, False, True, False), (5, True, False, False), (5, True, True, True)],
)
def test_it_stays_for_a_while_and_as_long_as_a_line_is_open(
    idle, alone, has_rows, stays, receiver_options, monkeypatch, tmp_path
):
    """Ten units of time without a batch end it, or two where its planner is gone and nothing is kept."""
    monkeypatch.setattr(process, "IDLE_SECONDS", 10)
    monkeypatch.setattr(process, "LEFT_ALONE_SECONDS", 2)
    expected = Receptions(tmp_path)
    expected.plan(planned_reception(UUID(int=7), receiver_options(inlineBytes="1000"), STRUCT))
    if has_rows:
        expected.of(UUID(int=7)).take(0, 1, body(1)[0])
    expected.is_alone = alone
    later = time.monotonic() + idle
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: later))
    with expected.at_work():
        monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: later + 100))
        assert expected.has_work()
        monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: later - idle))
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: later))
    assert expected.has_work() is stays


def test_where_spark_keeps_no_workers_or_none_is_wanted_there_is_no_receiver(
    receiver_options, started_receivers, monkeypatch
):
    """A process for each batch would be too many."""
    assert receiver_for(receiver_options(receiver="off"), STRUCT) is None
    monkeypatch.delenv("SPARK_REUSE_WORKER")
    assert receiver_for(receiver_options(), STRUCT) is None
    assert started_receivers == []


def test_no_password_stands_where_other_users_of_the_host_can_read(receiver_options, started_receivers, tmp_path):
    """The process is told its options and its secret on its standard input, not in its arguments."""
    password = "s3cret-of-the-database"
    # No transaction begins, for a few bytes.
    far = receiver_options(url=f"postgresql://user:{password}@{HOST}:1/db", receiver=HOST, inlineBytes="1000000")
    receiver = receiver_for(far, STRUCT)
    assert send(receiver, 1, 2) == 2
    command = subprocess.run(
        ["ps", "-ww", "-o", "args=", "-p", str(started_receivers[0].pid)], capture_output=True, check=True
    )
    assert b"pgonce.sink.data_source.receiver.process" in command.stdout
    for hidden in (password, receiver.doors.secret.hex(), str(receiver.token)):
        assert hidden.encode() not in command.stdout
    environment = Path(f"/proc/{started_receivers[0].pid}/environ")
    assert not environment.exists() or password.encode() not in environment.read_bytes()


@pytest.mark.parametrize("has_rows", [True, False], ids=["with rows", "idle"])
def test_it_ends_with_sparks_daemon(has_rows, target, receiver_options, started_receivers, monkeypatch):
    """A receiver whose Spark is gone ends within seconds, and with it the transaction."""
    daemon = subprocess.Popen(["sleep", "100"])
    monkeypatch.setattr(launch.os, "getppid", lambda: daemon.pid)
    receiver = receiver_for(receiver_options(), STRUCT)
    if has_rows:
        send(receiver, 1, 2)
        in_copy(target)
    else:
        # It has started once it answers.
        receiver.dial().close()
    assert not is_gone(started_receivers[0], seconds=1.5)
    daemon.kill()
    daemon.wait()
    assert is_gone(started_receivers[0], seconds=20)
    assert started_receivers[0].returncode == 0
    assert not Path(receiver.folder).exists()
    left = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"
    assert wait_until(lambda: not target.execute(left, [application_name(RUN)]).fetchall())
    assert ids(target) == []


def test_ctrl_c_does_not_end_it(target, receiver_options, started_receivers):
    """An interrupt is for the driver, which may commit the batch yet."""
    receiver = receiver_for(receiver_options(), STRUCT)
    send(receiver, 1, 2)
    os.kill(started_receivers[0].pid, signal.SIGINT)
    assert not is_gone(started_receivers[0], seconds=1)
    assert receiver.finish(origin(), SENT) is Verdict.NEW
    assert ids(target) == [1, 2]


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_an_address_that_is_not_this_hosts_is_refused(host, receiver_options, started_receivers):
    """The error names the option before any row moves; no process is started."""
    with pytest.raises(PgonceError, match=f"NO_RECEIVER_HOST.*{host}.*receiver=auto"):
        receiver_for(receiver_options(receiver=host), STRUCT)
    assert started_receivers == []


def test_tasks_may_ring_before_the_plan_is_read(target, receiver_options):
    """The plan and the tasks are sent at once: rows of a process that is just starting are taken all the same."""
    receiver = receiver_for(receiver_options(), STRUCT)
    taken = {}
    tasks = [
        threading.Thread(target=lambda n=n: taken.update({n: send(receiver, n, partition_id=n)})) for n in range(8)
    ]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    assert taken == dict.fromkeys(range(8), 1)
    assert receiver.finish(origin(), Promise("received", dict.fromkeys(range(8), (1, 1)))) is Verdict.NEW
    assert ids(target) == list(range(8))
