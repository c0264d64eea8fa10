"""
The receiver's side of a batch, without Spark: rows are copied on a guess, and only promised ones are committed.

Covers: sink.data_source.receiver.arrived, sink.data_source.receiver.messages.
"""

from __future__ import annotations

import json
import resource
import threading
import uuid
from contextlib import contextmanager

import pyarrow as pa
import pytest
from support.committed_rows import STRUCT, TABLE, ids
from support.data_source_with_rooms import planned_reception
from support.fixtures.driver import wait_until
from support.ledger_history import RUN
from support.received_batch import OPTIONS, in_copy, origin
from support.stopped_query import entries, entry, write_checkpoint

import pgonce.sink.data_source.receiver.arrived
import pgonce.sink.writing.write_batch
from pgonce.offsets_store.commit.one_transaction import application_name
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.data_source.promise import Promise
from pgonce.sink.data_source.receiver import process
from pgonce.sink.data_source.receiver.process import Receptions
from pgonce.sink.data_source.receiver.reception import Reception
from pgonce.sink.data_source.stager import Stager
from pgonce.sink.encoding.copy_encoder import HEADER, CopyEncoder
from pgonce.sink.encoding.unfit_rows import UnfitRow
from pgonce.sink.identity.planned_batch import staging_table
from pgonce.sink.options.sink_options import parse_options
from pgonce.sink.positions import EncodedRows

OTHER_RUN = "bbbbbbbb-1111-4111-8111-111111111111"
# Promised of partition 0: two rows of attempt 1.
SENT = {0: (1, 2)}
# More than psycopg, libpq and the server hold back: a row that was sent has come to Postgres at least in part.
WIDTH = 1_200_000


@pytest.fixture
def folder(tmp_path):
    """The checkpoint of a query that has planned batch 1."""
    return write_checkpoint(tmp_path / "checkpoint", entries(0, 1), [0])


@pytest.fixture
def receive(url, folder, tmp_path):
    """Makes receptions of batch 1, whose transaction begins with the first body if it may; none outlives the test."""
    made = []

    def make(*, overwrite=False, may_guess=True, **changes):
        given = {**OPTIONS, "url": url, "checkpointLocation": str(folder), **changes}
        options, path = parse_options(given, overwrite=overwrite), tmp_path / f"kept {len(made)}"
        made.append(Reception(planned_reception(uuid.uuid4(), options, STRUCT), path, may_guess=may_guess))
        return made[-1]

    yield make
    for reception in made:
        reception.arrived.give_up()
        if reception._early:
            reception._early.join(30)


@contextmanager
def full_disk(after):
    """Let this process write no file beyond so many bytes; the kernel says so as it does of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def arrow(*ids):
    """Rows with these ids, and long names."""
    names = [f"n{one}".ljust(WIDTH, ".") for one in ids]
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "name": pa.array(names, pa.string())})


def encoded(*ids):
    """Rows with these ids, as a task sends them."""
    return EncodedRows(CopyEncoder(STRUCT).encode(arrow(*ids)), len(ids))


def send(reception, partition_id, attempt_id, *ids, of=None):
    """A task attempt that sends these rows, one body each."""
    assert reception.arrived.open(of or origin())
    for one in ids:
        assert reception.take(partition_id, attempt_id, encoded(one))


def promise(received, transport="received", **others):
    """What the commit messages say: partition to attempt and number of rows."""
    return Promise(transport, received, **others)


def sent_on(promised):
    """The promise as it comes out of the line."""
    return Promise.from_message(json.loads(json.dumps(promised.as_message())), promised.inline)


def names(target):
    """All rows of the target, in order."""
    return target.execute("SELECT id, rtrim(name, '.') FROM events ORDER BY id").fetchall()


def recorded(target):
    """Rows and transport of batch 1 in the ledger."""
    return target.execute("SELECT rows, transport FROM pgonce.batches WHERE batch_id = 1").fetchall()


def transactions(target):
    """The ids of the run's transactions that are open."""
    return target.execute(
        "SELECT backend_xid::text FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = %s AND xact_start IS NOT NULL",
        [application_name(RUN)],
    ).fetchall()


def copying(target, *ids):
    """Wait until the last of these rows has come to Postgres, in an open COPY of the run; the transaction's id."""
    return in_copy(target, len(HEADER) + len(b"".join(encoded(one).body for one in ids[:-1])))


def writers_of(target):
    """The ids of the transactions that wrote the target's rows."""
    return target.execute("SELECT DISTINCT xmin::text FROM events").fetchall()


def rolled_back(target):
    """Wait until none of the run's sessions is in a transaction."""
    return wait_until(lambda: not transactions(target))


def test_rows_are_copied_while_tasks_run_and_seen_once_they_are_promised(target, receive):
    """The transaction in which rows were copied before the promise is the one that commits them."""
    reception = receive()
    send(reception, 0, 1, 1, 2)
    send(reception, 1, 2, 3)
    began = copying(target, 1, 2, 3)
    assert (ids(target), recorded(target)) == ([], [])
    send(reception, 1, 2, 4)
    assert copying(target, 1, 2, 3, 4) == began
    assert ids(target) == []
    assert reception.finish(origin(), promise({0: (1, 2), 1: (2, 2)})) is Verdict.NEW
    assert ids(target) == [1, 2, 3, 4]
    assert writers_of(target) == began
    assert recorded(target) == [(4, "received")]


@pytest.mark.parametrize(
    ("promised", "inline", "published"),
    [
        pytest.param({0: (2, 2), 1: (3, 1)}, (), [10, 20, 30], id="another attempt"),
        pytest.param({0: (1, 2)}, (30,), [1, 2, 30], id="another way"),
        pytest.param({0: (1, 2), 1: (3, 1), 2: (5, 0)}, (), [1, 2, 30], id="a partition without rows"),
    ],
)
def test_a_wrong_guess_costs_a_second_transaction(promised, inline, published, target, receive):
    """Where other rows are promised than were copied, these are rolled back, and exactly the promised ones written."""
    reception = receive()
    send(reception, 0, 1, 1, 2)
    send(reception, 1, 3, 30)
    began = copying(target, 1, 2, 30)
    send(reception, 0, 2, 10, 20)
    bodies = tuple(encoded(one) for one in inline)
    verdict = reception.finish(origin(), promise(promised, inline=bodies))
    assert verdict is Verdict.NEW
    assert ids(target) == published
    assert writers_of(target) != began
    assert recorded(target) == [(len(published), "received")]


def test_rows_of_an_attempt_that_broke_are_rolled_back_at_once(target, receive):
    """A task that dies after rows of it were copied ends the transaction; the next attempt's rows are written."""
    reception = receive()
    send(reception, 0, 1, 1, 2)
    copying(target, 1, 2)
    reception.arrived.break_off(0, 1)
    assert rolled_back(target)
    send(reception, 0, 2, 1, 2, 3)
    assert reception.finish(origin(), promise({0: (2, 3)})) is Verdict.NEW
    assert ids(target) == [1, 2, 3]


def test_a_speculative_attempt_that_breaks_disturbs_nothing(target, receive):
    """What was not copied cannot have been copied in vain: the transaction goes on."""
    reception = receive()
    send(reception, 0, 1, 1)
    began = copying(target, 1)
    send(reception, 0, 2, 1, 2)
    reception.arrived.break_off(0, 2)
    send(reception, 0, 1, 2)
    assert copying(target, 1, 2) == began
    assert reception.finish(origin(), promise(SENT)) is Verdict.NEW
    assert ids(target) == [1, 2]
    assert writers_of(target) == began


@pytest.mark.parametrize("bound", ["LONGEST_SILENCE_SECONDS", "LONGEST_GUESS_SECONDS"])
def test_a_transaction_waits_for_a_promise_only_so_long(bound, target, receive, monkeypatch):
    """It holds the writer's row: past the bound it is rolled back, and begun again when all rows are promised."""
    reception = receive()
    send(reception, 0, 1, 1)
    began = copying(target, 1)
    send(reception, 0, 1, 2)
    assert copying(target, 1, 2) == began
    monkeypatch.setattr(pgonce.sink.data_source.receiver.arrived, bound, 0)
    assert rolled_back(target)
    assert reception.finish(origin(), promise(SENT)) is Verdict.NEW
    assert ids(target) == [1, 2]
    assert writers_of(target) != began
    assert reception.arrived.lasted > 0


def test_after_a_batch_that_lasted_the_next_one_is_not_guessed(target, url, folder, tmp_path, monkeypatch):
    """What would be copied for a minute and then rolled back is not begun; a batch that is quick again changes that."""
    expected = Receptions(tmp_path)
    options = parse_options({**OPTIONS, "url": url, "checkpointLocation": str(folder)}, overwrite=False)

    def has_begun_early(number, longest):
        monkeypatch.setattr(process, "LONGEST_GUESS_SECONDS", longest)
        token = uuid.UUID(int=number)
        expected.plan(planned_reception(token, options, STRUCT))
        reception = expected.of(token)
        send(reception, 0, number, number)
        reception.arrived.take_promise(origin(), promise({0: (number, 1)}))
        return reception._early is not None

    assert has_begun_early(1, longest=60)
    assert not has_begun_early(2, longest=0)
    assert has_begun_early(3, longest=60)
    expected.give_up()
    assert rolled_back(target)


def test_a_batch_whose_rows_carry_their_positions_is_begun_once_all_are_promised(target, receive):
    """Until then it is not known how far they reach, and so not which of them are stored."""
    reception = receive(positionColumns="topic,partition,offset", writePositions="false")
    send(reception, 0, 1, 1, 2)
    assert reception._early is None
    assert reception.finish(origin(), promise(SENT, reach={"t": {"0": (10, 20)}})) is Verdict.NEW
    assert ids(target) == [1, 2]
    positions = target.execute("SELECT positions FROM pgonce.batches WHERE batch_id = 1").fetchone()
    assert positions == ({"0": {"t": {"0": 20}}},)


def test_a_writers_first_batch_is_begun_when_all_its_rows_are_there(target, receive):
    """It would keep other queries' first batches waiting while its tasks run."""
    reception = receive(sinkName="another")
    send(reception, 0, 1, 1, 2, of=origin(0))
    assert reception._early is None
    assert reception.finish(origin(0), promise(SENT)) is Verdict.NEW
    assert ids(target) == [1, 2]


def test_a_batch_that_is_given_up_is_rolled_back_and_committed_no_more(target, receive):
    """Where Spark says that a batch has failed, nobody may write it afterwards, or send more of it."""
    reception = receive()
    send(reception, 0, 1, 1, 2)
    copying(target, 1, 2)
    reception.arrived.give_up()
    assert rolled_back(target)
    assert not reception.arrived.open(origin())
    with pytest.raises(PgonceError, match="RECEIVER_LOST"):
        reception.finish(origin(), promise(SENT))
    assert (ids(target), recorded(target)) == ([], [])


@pytest.mark.parametrize("place", [None, ("t", 0, 7)])
@pytest.mark.parametrize("early", [True, False], ids=["rows are copied", "rows are kept"])
def test_rows_that_could_not_be_encoded_come_with_the_promise(early, place, target, receive, monkeypatch):
    """They cross the line as they are, and the commit gets them, whether it has guessed its rows or was told them."""
    unfit = UnfitRow('{"name": {"base64": "AA=="}}', "name", "NUL_IN_TEXT", "Column 'name' has a NUL.", place)
    reception = receive(may_guess=early)
    written = []
    publish = pgonce.sink.writing.write_batch.write_batch_in_tx

    def noted(connection, destination, rows, *others, **named):
        result = publish(connection, destination, rows, *others, **named)
        written.append((tuple(rows.unfit()), rows.count()))
        return result

    monkeypatch.setattr(pgonce.sink.writing.write_batch, "write_batch_in_tx", noted)
    send(reception, 0, 1, 1, 2)
    if early:
        copying(target, 1, 2)
    assert reception.finish(origin(), sent_on(promise(SENT, unfit=(unfit,)))) is Verdict.NEW
    assert written == [((unfit,), 2)]
    assert ids(target) == [1, 2]


def test_rows_that_did_not_come_are_not_committed(target, receive):
    """A promise that does not fit what was received fails, and leaves nothing."""
    reception = receive()
    send(reception, 0, 1, 1, 2)
    copying(target, 1, 2)
    with pytest.raises(PgonceError, match="RECEIVER_LOST"):
        reception.finish(origin(), promise({0: (1, 3)}))
    reception.arrived.give_up()
    assert rolled_back(target)
    assert (ids(target), recorded(target)) == ([], [])


@pytest.mark.parametrize("early", [True, False], ids=["rows are copied", "rows are kept"])
def test_an_offset_log_that_another_driver_rewrote_ends_the_batch(early, target, folder, receive):
    """The checkpoint is read again when rows are promised: a batch that is not this driver's is not written."""
    reception = receive(may_guess=early)
    send(reception, 0, 1, 1, 2)
    if early:
        copying(target, 1, 2)
    assert (reception._early is not None) is early
    write_checkpoint(folder, {1: entry(1, planned=5)})
    with pytest.raises(PgonceError, match="CHECKPOINT_IN_USE"):
        reception.finish(origin(), promise(SENT))
    assert (ids(target), recorded(target)) == ([], [])
    assert rolled_back(target)


def test_rows_for_which_there_is_no_room_are_not_taken(target, url, receive):
    """The task hears it, and stages them; what was kept before is written, and each row is there once."""
    reception = receive()
    send(reception, 0, 1, 1)
    with full_disk(after=encoded(1).size + WIDTH // 2):
        assert not reception.take(0, 1, encoded(2))
    assert not reception.take(0, 1, encoded(3))
    assert not reception.arrived.open(origin())
    reception.arrived.break_off(0, 1)
    staged = Stager(url, staging_table(reception._options, origin()), STRUCT, 1, 10).stage(iter([arrow(2, 3)]))
    assert reception.finish(origin(), promise({0: (1, 1)}, "received+staged", staged=staged)) is Verdict.NEW
    assert ids(target) == [1, 2, 3]
    assert recorded(target) == [(3, "received+staged")]


def test_rows_that_the_task_did_not_hear_of_are_not_written(target, url, receive):
    """Where the receiver has kept more than the task was told, only what it promises counts, copied or not."""
    reception = receive()
    send(reception, 0, 1, 1, 2, 3)
    copying(target, 1, 2, 3)
    staged = Stager(url, staging_table(reception._options, origin()), STRUCT, 1, 10).stage(iter([arrow(2, 3)]))
    assert reception.finish(origin(), promise({0: (1, 1)}, "received+staged", staged=staged)) is Verdict.NEW
    assert ids(target) == [1, 2, 3]


@pytest.mark.parametrize("fault", ["cut_in_copy", "cut_before_commit", "cut_during_commit", "cut_after_commit"])
def test_a_cut_line_leaves_the_batch_written_once(fault, target, proxy, receive):
    """Wherever the line to Postgres is cut, the rows are copied again from what was kept, or found committed."""
    getattr(proxy, fault)(touching="events")
    reception = receive(url=proxy.url)
    send(reception, 0, 1, 1, 2)
    if fault == "cut_in_copy":
        # The cut may be noticed with the next rows only, which are those of the promise.
        assert wait_until(lambda: proxy.hits[fault])
    else:
        copying(target, 1, 2)
    verdict = reception.finish(origin(), promise(SENT))
    assert proxy.hits[fault] == 1
    assert verdict in (Verdict.NEW, Verdict.LANDED)
    if fault != "cut_during_commit":
        assert (verdict is Verdict.LANDED) is (fault == "cut_after_commit")
    assert ids(target) == [1, 2]
    assert recorded(target) == [(2, "received")]


def test_an_outcome_that_cannot_be_asked_for_stays_unknown(target, proxy, receive):
    """Where the answer to an early COMMIT is lost and Postgres stays away, the later try does not call it a failure."""
    hold = proxy.hold_after_commit(touching="events")
    reception = receive(url=proxy.url, retryTimeout="2")
    send(reception, 0, 1, 1, 2)
    copying(target, 1, 2)
    lost = threading.Thread(target=lambda: (hold.wait(), proxy.stop()))
    lost.start()
    with pytest.raises(PgonceError, match="COMMIT_UNKNOWN"):
        reception.finish(origin(), promise(SENT))
    lost.join()


def test_a_batch_that_was_published_is_skipped(target, receive):
    """A restart's reception of the same offsets, under a token of its own, finds a replay before rows are promised."""
    first, again = receive(), receive()
    send(first, 0, 1, 1, 2)
    assert first.finish(origin(), promise(SENT)) is Verdict.NEW
    send(again, 0, 1, 1, 2, of=origin(run_id=OTHER_RUN))
    assert again.finish(origin(run_id=OTHER_RUN), promise(SENT)) is Verdict.REPLAY
    assert ids(target) == [1, 2]
    assert target.execute("SELECT run_id FROM pgonce.replays").fetchall() == [(OTHER_RUN,)]


def test_an_open_transaction_does_not_keep_another_driver_out(target, receive):
    """Who is ready to commit ends a session that waits for its tasks, whose driver then hears who owns the writer."""
    slow, quick = receive(), receive(may_guess=False)
    send(slow, 0, 1, 1, 2)
    copying(target, 1, 2)
    send(quick, 0, 1, 1, 2, of=origin(run_id=OTHER_RUN))
    assert quick.finish(origin(run_id=OTHER_RUN), promise(SENT)) is Verdict.NEW
    with pytest.raises(PgonceError, match=f"FENCED.*{OTHER_RUN}"):
        slow.finish(origin(), promise(SENT))
    assert ids(target) == [1, 2]


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        pytest.param({"mode": "upsert", "keys": "id"}, [(1, "n1"), (2, "n2"), (9, "old")], id="upsert"),
        pytest.param({"overwrite": True}, [(1, "n1"), (2, "n2")], id="complete"),
    ],
)
def test_every_mode_writes_what_was_received(changes, left, target, receive):
    """Rows that exist are updated, or replaced, in the open transaction; readers see the old ones until the end."""
    old = [(1, "old"), (9, "old")]
    target.execute("ALTER TABLE events ADD PRIMARY KEY (id)")
    target.execute("INSERT INTO events VALUES (1, 'old'), (9, 'old')")
    reception = receive(**changes)
    send(reception, 0, 1, 1, 2)
    copying(target, 1, 2)
    assert names(target) == old
    assert reception.finish(origin(), promise(SENT)) is Verdict.NEW
    assert names(target) == left


@pytest.mark.parametrize("repaired", [True, False], ids=["passes", "stays"])
def test_an_early_failure_counts_only_if_it_comes_again(repaired, target, receive, caplog):
    """What failed before all rows were there is tried once more at the end, and then raised as it is."""
    target.execute("DROP TABLE events")
    reception = receive()
    send(reception, 0, 1, 1, 2)
    assert wait_until(lambda: "TARGET_MISSING" in caplog.text)
    if repaired:
        target.execute(TABLE)
        assert reception.finish(origin(), promise(SENT)) is Verdict.NEW
        assert ids(target) == [1, 2]
    else:
        with pytest.raises(PgonceError, match="TARGET_MISSING"):
            reception.finish(origin(), promise(SENT))
    assert len(recorded(target)) == repaired


def test_a_refused_row_of_a_guess_is_shown_in_no_log(target, receive, caplog):
    """A transaction that is put off may have been refused by then: what Postgres says of it repeats a whole row."""
    target.execute("ALTER TABLE events ADD CONSTRAINT small CHECK (id < 2)")
    reception = receive()
    send(reception, 0, 1, 1, 2, 3)
    aborted = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state LIKE '%(aborted)'"
    assert wait_until(lambda: target.execute(aborted).fetchall())
    reception.arrived.give_up()
    reception._early.join(30)
    assert "n2" not in caplog.text
