"""
The line to a receiver tells strangers nothing and believes none, neither in a receiver's place nor between.

Covers: sink.data_source.receiver.line, sink.data_source.receiver.messages.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import queue
import secrets
import socket
import ssl
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

import pytest
from support import wire
from support.committed_rows import STRUCT, ids
from support.data_source_with_rooms import commit_parcels, receiver_for
from support.fixtures.receiver import Between
from support.received_batch import SENT, body, name_of, origin, parcels, send

import pgonce.sink.data_source.receiver.client
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.data_source.offer import offered
from pgonce.sink.data_source.parcel import Parcel
from pgonce.sink.data_source.promise import Promise
from pgonce.sink.data_source.receiver import process
from pgonce.sink.data_source.receiver.calls import Doors
from pgonce.sink.data_source.receiver.client import Receiver
from pgonce.sink.data_source.receiver.host_process import host_process
from pgonce.sink.data_source.receiver.line import SECRET_BYTES, Line, context_for, context_of, new_identity
from pgonce.sink.data_source.receiver.messages import Start
from pgonce.sink.data_source.stager import Stager
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.identity.planned_batch import staging_table


@pytest.fixture
def receiver(receiver_options):
    """A receiver that expects batch 1."""
    return receiver_for(receiver_options(), STRUCT)


def commit(options, receiver):
    """What the commit worker does with the message of the task of :data:`SENT`."""
    return commit_parcels(options, encoded_columns(STRUCT), parcels(receiver), 1)


def recorded(target):
    """How often batch 1 is in the ledger."""
    return target.execute("SELECT count(*) FROM pgonce.batches WHERE batch_id = 1").fetchone()[0]


def hung_up(line):
    """Wait until the other side hangs up, without a word that could be read."""
    try:
        while line.recv(65536):
            pass
    except TimeoutError:
        raise
    except OSError:
        pass


class Stranger:
    """Who listens where a receiver was: does with each line that is taken what ``answer`` says, and keeps what came."""

    def __init__(self, answer):
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.heard = []
        where, secret = (self._listening.getsockname(),), secrets.token_bytes(SECRET_BYTES)
        self.taken_for = Receiver(Doors(where, new_identity().certificate, secret), uuid4(), "/no such folder")
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while True:
            try:
                caller, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._converse, args=(caller,), daemon=True).start()

    def _converse(self, caller):
        try:
            self._answer(self, caller)
        except (OSError, EOFError):
            pass
        finally:
            wire.close(caller)

    def close(self):
        """Listen no more."""
        wire.close(self._listening)


def with_its_own_certificate(stranger, caller):
    """Speaks TLS well, and takes whatever comes."""
    line = Line(caller, context_of(new_identity()), 10, dialled=False)
    while True:
        stranger.heard.append(line.hear())
        line.say(taken=True, kept=True, verdict="NEW")


def without_tls(stranger, caller):
    """Answers in the clear, and says what a caller would like to hear."""
    yes = json.dumps({"taken": True, "kept": True, "verdict": "NEW"}).encode()
    caller.sendall(len(yes).to_bytes(8, "big") + yes)
    while said := caller.recv(65536):
        stranger.heard.append(said)


def as_a_mirror(_, caller):
    """Sends back what is said."""
    while said := caller.recv(65536):
        caller.sendall(said)


def as_a_go_between():
    """Brings two callers together, each of whom takes the other for the receiver."""
    waiting = queue.SimpleQueue()
    both = threading.Lock()

    def answer(_, caller):
        with both:
            is_first = waiting.empty()
            if is_first:
                parted = threading.Event()
                waiting.put((caller, parted))
            else:
                other, others_parted = waiting.get()
        if is_first:
            parted.wait()
            return
        there = threading.Thread(target=passed_on, args=(caller, other), daemon=True)
        there.start()
        passed_on(other, caller)
        wire.close(caller, other)
        there.join()
        others_parted.set()

    return answer


def passed_on(source, sink):
    """All that comes from one side, to the other."""
    with suppress(OSError):
        while said := source.recv(65536):
            sink.sendall(said)


STRANGERS = [with_its_own_certificate, without_tls, as_a_mirror, as_a_go_between()]
NAMES = ["its own certificate", "no TLS", "a mirror", "a go-between"]


@pytest.mark.parametrize("answer", STRANGERS, ids=NAMES)
def test_who_listens_where_a_receiver_was_is_told_nothing(answer, monkeypatch):
    """No task sends a row, no commit believes a verdict, and no secret is said, however the stranger answers."""
    monkeypatch.setattr(pgonce.sink.data_source.receiver.client, "SILENCE_SECONDS", 3)
    stranger = Stranger(answer)
    told = stranger.taken_for
    try:
        # Two at a time, for one caller's answer was once another one's proof.
        with ThreadPoolExecutor() as pool:
            tasks = [pool.submit(send, told, 1, 2, partition_id=n) for n in range(2)]
            assert [task.result() for task in tasks] == [None, None]
            commits = [pool.submit(told.finish, origin(), SENT) for _ in range(2)]
            for committed in commits:
                with pytest.raises(PgonceError, match="RECEIVER_LOST"):
                    committed.result()
        told.give_up()
    finally:
        stranger.close()
    heard = b"".join(stranger.heard)
    assert name_of(1).encode() not in heard
    assert told.doors.secret not in heard


def test_who_stands_between_reads_no_row_and_no_secret(target, receiver):
    """All that passes on the line is unreadable, and the batch is published all the same."""
    between = Between(receiver)
    assert send(between.receiver, 1, 2) == 2
    assert between.receiver.finish(origin(), SENT) is Verdict.NEW
    between.close()
    assert ids(target) == [1, 2]
    assert len(between.heard) == 2
    for heard in between.heard:
        assert len(heard) > SECRET_BYTES
        for hidden in (
            name_of(1).encode(),
            receiver.doors.secret,
            str(receiver.token).encode(),
            b"promise",
            b"partition_id",
        ):
            assert hidden not in heard


def test_what_was_recorded_and_is_sent_again_is_not_heard(target, receiver, receiver_options):
    """A recording of a batch that was given up, or of a task's rows, is no batch and no row."""
    between = Between(receiver)
    assert send(between.receiver, 1, 2) == 2
    between.receiver.give_up()
    between.close()
    last = receiver_for(receiver_options(), STRUCT)
    assert send(last, 1, 2) == 2
    for recording in between.heard:
        with socket.create_connection(receiver.doors.addresses[0], timeout=30) as again:
            again.sendall(recording)
            hung_up(again)
    assert last.finish(origin(), SENT) is Verdict.NEW
    assert ids(target) == [1, 2]


def test_a_line_that_is_cut_is_never_taken_for_its_end(target, receiver, receiver_options):
    """Wherever a task's words end too early, it stages what it was not told is kept, and each row is there once."""
    whole = Between(receiver)
    assert send(whole.receiver, 1, 2) == 2
    length = len(whole.heard[0])
    whole.close()
    # In the handshake, in the secret, in the request, among the rows, before their end and before their number.
    cuts = [1, length // 4, length // 2, length - 150, length - 60, length - 30, length - 1]
    table, promised = staging_table(receiver_options(), origin()), parcels(receiver)
    for number, cut in enumerate(cuts, start=1):
        between = Between(receiver, to_receiver=cut)
        rows = map(body, (10 * number, 10 * number + 1))
        taken = between.receiver.call().send_rows(origin(), number, 10 + number, rows)
        between.close()
        left = itertools.chain(taken.left, (row for _, row in rows))
        staged = Stager(receiver_options().commit.url, table, STRUCT, 10 + number, 10).stage(left)
        assert taken.rows + sum(count for _, count in staged) == 2
        received = (10 + number, taken.rows) if taken.rows else None
        promised.append(Parcel(origin(), number, 2, staged=staged, received=received, offer=offered(receiver)))
    assert commit_parcels(receiver_options(), encoded_columns(STRUCT), promised, 1) is Verdict.NEW
    assert ids(target) == [1, 2, *(10 * number + one for number in range(1, len(cuts) + 1) for one in (0, 1))]


def test_a_task_does_not_promise_rows_whose_receipt_was_cut(target, receiver):
    """Where the receiver's word that it has them is cut, the task keeps them, and what it sent is not committed."""
    whole = Between(receiver)
    assert send(whole.receiver, 1) == 1
    whole.close()
    # In the midst of its word, which is the last that it says (a signature may be a byte or two longer or shorter).
    between = Between(receiver, from_receiver=len(whole.answered[0]) - 20)
    taken = between.receiver.call().send_rows(origin(), 1, 2, map(body, [3]))
    assert (taken.rows, [row.column("id").to_pylist() for row in taken.left]) == (0, [[3]])
    between.close()
    assert receiver.finish(origin(), Promise("received", {0: (1, 1)})) is Verdict.NEW
    assert ids(target) == [1]


def test_a_caller_who_says_goodbye_in_the_middle_is_no_end_either(target, receiver):
    """TLS's own word for an end, sent among the rows, makes them no whole: those before it are kept, and no others."""
    line = receiver.dial()
    who = {"query_id": origin().query_id, "run_id": origin().run_id, "batch_id": 1, "planned_by_ms": None}
    planned = {"batch_id": 1, "sha256": origin().planned.sha256}
    line.say(say="rows", token=str(receiver.token), origin={**who, "planned": planned}, partition_id=0, attempt_id=1)
    assert line.hear() == {"taken": True}
    for one in (1, 2):
        line.send_rows(body(one)[0])
    with suppress(OSError):
        # Sends close_notify, and waits for the receiver's.
        line._socket.unwrap()
    line.close()
    with pytest.raises(PgonceError, match=r"RECEIVER_LOST.* 3 rows, and 2 "):
        receiver.finish(origin(), Promise("received", {0: (1, 3)}))
    assert (ids(target), recorded(target)) == ([], 0)


@pytest.mark.parametrize("said", [b"", b"\0" * SECRET_BYTES, b"short", b"\xff" * 70_000])
def test_who_knows_the_certificate_alone_is_not_heard(said, target, receiver):
    """The certificate is no secret; who does not begin with the secret is hung up on, whatever else he says."""
    assert send(receiver, 1, 2) == 2
    with (
        socket.create_connection(receiver.doors.addresses[0]) as plain,
        context_for(receiver.doors.certificate).wrap_socket(plain) as caller,
    ):
        caller.settimeout(30)
        # It may be hung up on before it has ended.
        with suppress(OSError):
            caller.sendall(said + json.dumps({"say": "give up", "token": str(receiver.token)}).encode())
        hung_up(caller)
    assert receiver.finish(origin(), SENT) is Verdict.NEW
    assert ids(target) == [1, 2]


def test_another_batchs_token_opens_nothing(target, receiver, receiver_options, monkeypatch, tmp_path):
    """Who names a batch that is over, or none at all, sends no row and commits nothing of the one that is planned."""
    planned = receiver_for(receiver_options(), STRUCT)
    assert send(planned, 1, 2) == 2
    assert send(receiver, 3) is None
    with pytest.raises(PgonceError, match="RECEIVER_LOST"):
        receiver.finish(origin(), SENT)
    receiver.give_up()
    assert planned.finish(origin(), SENT) is Verdict.NEW
    assert ids(target) == [1, 2]
    monkeypatch.setattr(process, "_PLAN_SECONDS", 0.1)
    assert process.Receptions(tmp_path).of(uuid4()) is None


def test_many_silent_callers_keep_nobody_waiting(target, receiver):
    """A hundred lines, half of them with TLS and none with a word, are hung up on; meanwhile a batch is published."""
    assert send(receiver, 1, 2) == 2
    silent = [socket.create_connection(receiver.doors.addresses[0]) for _ in range(100)]
    context = context_for(receiver.doors.certificate)
    for number in range(0, 100, 2):
        silent[number] = context.wrap_socket(silent[number])
    began = time.monotonic()
    assert receiver.finish(origin(), SENT) is Verdict.NEW
    assert time.monotonic() - began < 10
    assert ids(target) == [1, 2]
    for one in silent:
        one.settimeout(60)
        hung_up(one)
        one.close()


def test_a_line_is_tls_1_3_and_nothing_older(receiver):
    """An older version is refused, whatever a caller would like."""
    context = context_for(receiver.doors.certificate)
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(receiver.doors.addresses[0]) as plain,
        pytest.raises(OSError, match=r"(?i)alert|version|handshake"),
    ):
        context.wrap_socket(plain)


def test_a_line_whose_other_side_vanished_is_noticed_after_a_minute(receiver):
    """Whether something was sent to it, which keepalives wait for, or nothing was."""
    line = receiver.dial()
    asked = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
    known = {name: value for name, value in asked.items() if hasattr(socket, name)}
    assert {name: line._socket.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in known} == known
    assert line._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert line._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    line.close()


@pytest.mark.parametrize("claimed", ["NEW", "LANDED", "REPLAY", "ADOPTED"])
def test_a_verdict_that_the_ledger_does_not_have_is_not_believed(claimed, target, receiver_options):
    """Even of one who has the key of the receiver: the batch is not done, and the query says so."""
    identity, secret = new_identity(), secrets.token_bytes(SECRET_BYTES)

    def lies(_, caller):
        line = Line(caller, context_of(identity), 10, dialled=False)
        line.refuse_stranger(secret)
        line.hear()
        line.say(verdict=claimed)

    liar = Stranger(lies)
    doors = replace(liar.taken_for.doors, certificate=identity.certificate, secret=secret)
    believed = replace(liar.taken_for, doors=doors)
    with pytest.raises(PgonceError, match=f"NOT_IN_LEDGER.*{claimed}"):
        commit(receiver_options(), believed)
    liar.close()
    assert (ids(target), recorded(target)) == ([], 0)


def test_without_the_library_that_makes_certificates_there_is_no_receiver(receiver_options, monkeypatch, caplog):
    """It is installed with pgonce; where it is missing all the same, tasks stage their rows."""
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert receiver_for(receiver_options(), STRUCT) is None
    assert "cryptography" in caplog.text


def test_no_secret_stands_where_a_log_would_show_it(receiver):
    """Neither in what the plan carries nor in what the receiver is told, as Python shows them."""
    identity = new_identity()
    process = host_process(os.getpid())
    start = Start(identity, receiver.doors.secret, receiver.folder, process, "0.0.9")
    shown = repr(identity) + repr(start) + repr(receiver) + repr(Parcel(origin(), 0, 0, offer=offered(receiver)))
    for hidden in (identity.key, identity.password, receiver.doors.secret):
        assert repr(hidden)[2:-1] not in shown
    # The key is the receiver's alone: what travels with the plan does not have it.
    assert b"PRIVATE KEY" not in pickle.dumps(receiver)
