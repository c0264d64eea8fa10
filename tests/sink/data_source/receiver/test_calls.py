"""Tasks try the addresses of a receiver in their order, and take the first that is it."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from uuid import uuid4

import pytest
from support import wire

from pgonce.sink.data_source.receiver import calls, sending
from pgonce.sink.data_source.receiver.calls import Doors, NotThereError
from pgonce.sink.data_source.receiver.line import SECRET_BYTES, Line, context_of, new_identity
from pgonce.sink.data_source.receiver.sending import Call

HOST = "127.0.0.1"
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has Unix sockets without a file")


@pytest.fixture(autouse=True)
def nothing_remembered():
    """What a process remembers of receivers is another process's."""
    yield
    calls.reached.clear()
    calls.silent.clear()


class Answering:
    """Who answers at an address, after a while, with a certificate; ``heard`` has the secrets of the callers."""

    def __init__(self, identity, *, after=0.0, name=None):
        self._identity, self._after = identity, after
        if name:
            self._listening = socket.socket(socket.AF_UNIX)
            self._listening.bind(name)
            self._listening.listen()
            self.address = name
        else:
            self._listening = socket.create_server((HOST, 0))
            self.address = (HOST, self._listening.getsockname()[1])
        self.heard = []
        self.hung_up = threading.Semaphore(0)
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self):
        while True:
            try:
                connected, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._converse, args=(connected,), daemon=True).start()

    def _converse(self, connected):
        time.sleep(self._after)
        try:
            context = context_of(self._identity) if self._identity else None
            line = Line(connected, context, 10, dialled=False)
            self.heard.append(line._socket.recv(SECRET_BYTES))
            line._socket.recv(1)
            line.close()
        except OSError:
            connected.close()
        self.hung_up.release()

    def close(self):
        """Answer nobody any more."""
        wire.close(self._listening)


@contextmanager
def answering(*where):
    """Those who answer, until the block ends."""
    try:
        yield where
    finally:
        for one in where:
            one.close()


def doors(identity, *addresses):
    """How a receiver with this certificate is called."""
    return Doors(addresses, identity.certificate if identity else None, secrets.token_bytes(SECRET_BYTES))


def a_call(at):
    """A task's call."""
    return Call(at, uuid4())


def unused():
    """An address at which nothing listens."""
    with socket.create_server((HOST, 0)) as closed:
        return HOST, closed.getsockname()[1]


@pytest.fixture
def silent():
    """An address that answers nothing, as behind a firewall: its backlog is full."""
    with socket.create_server((HOST, 0), backlog=0) as listening:
        address = (HOST, listening.getsockname()[1])
        filling = [socket.socket() for _ in range(8)]
        for one in filling:
            one.setblocking(False)
            one.connect_ex(address)
        yield address
        for one in filling:
            one.close()


def fresh_name():
    """A name for a Unix socket that nobody has taken."""
    return f"\0pgonce-test-{secrets.token_hex(8)}"


def test_the_first_that_answers_is_taken_and_later_calls_go_straight_to_it():
    """The others hear nothing, neither then nor later."""
    identity = new_identity()
    with answering(Answering(identity), Answering(identity)) as where:
        at = doors(identity, unused(), *(one.address for one in where))
        for _ in range(2):
            at.dial(5).close()
            assert where[0].hung_up.acquire(timeout=10)
        assert [one.heard for one in where] == [[at.secret] * 2, []]
        assert calls.reached == {at.secret: where[0].address}


def test_a_stranger_at_an_address_is_not_taken():
    """Another certificate, or none at all, is not an answer."""
    identity = new_identity()
    with answering(Answering(new_identity()), Answering(identity)) as (stranger, receiver):
        at = doors(identity, stranger.address, receiver.address)
        at.dial(5).close()
        assert receiver.hung_up.acquire(timeout=10)
        assert receiver.heard == [at.secret]
        assert at.secret not in stranger.heard


def test_who_cannot_be_reached_costs_two_seconds_once(silent):
    """However many addresses there are; later tasks of the process do not wait."""
    at = doors(new_identity(), silent, unused(), silent, silent)
    began = time.monotonic()
    call = a_call(at)
    assert call.line() is None
    assert 1.4 < time.monotonic() - began < 4
    assert call.is_unreached
    began = time.monotonic()
    again = a_call(at)
    assert again.line() is None
    assert again.is_unreached
    assert time.monotonic() - began < 0.5
    # It is of one receiver that this is remembered.
    assert list(calls.silent) == [at.secret]


def test_who_refuses_costs_nothing_and_may_come_back():
    """A refusal is not remembered."""
    identity, where = new_identity(), unused()
    at = doors(identity, where)
    began = time.monotonic()
    call = a_call(at)
    assert (call.line(), call.is_unreached) == (None, True)
    assert time.monotonic() - began < 1
    assert calls.silent == {}


def test_one_that_was_reached_and_is_gone_is_not_out_of_reach():
    """It was killed, so the next plan offers another one at the same addresses."""
    identity = new_identity()
    with answering(Answering(identity)) as (receiver,):
        at = doors(identity, receiver.address)
        at.dial(5).close()
    call = a_call(at)
    assert (call.line(), call.is_unreached) == (None, False)


def test_one_that_is_there_and_says_nothing_is_not_out_of_reach(monkeypatch):
    """It may be starting, or frozen: a task waits for it once, and the process no more."""
    monkeypatch.setattr(sending, "SILENCE_SECONDS", 0.5)
    with socket.create_server((HOST, 0)) as listening:
        at = doors(new_identity(), (HOST, listening.getsockname()[1]))
        call = a_call(at)
        assert (call.line(), call.is_unreached) == (None, False)
        began = time.monotonic()
        assert a_call(at).line() is None
        assert time.monotonic() - began < 0.3
        # It is asked again after a minute.
        calls.silent[at.secret] = (False, time.monotonic() - 61)
        assert a_call(at).line() is None
        assert time.monotonic() - began > 0.5


def test_a_task_goes_on_while_it_calls():
    """There is a line only once the receiver has answered, and one that is no longer needed is closed."""
    identity = new_identity()
    with answering(Answering(identity, after=0.5)) as (receiver,):
        at = doors(identity, receiver.address)
        call = a_call(at)
        assert not call.is_answered
        line = call.line()
        assert line is not None
        line.close()
        assert receiver.hung_up.acquire(timeout=10)
        calls.reached.clear()
        dropped = a_call(at)
        dropped.drop()
        assert dropped.line() is None
        assert receiver.hung_up.acquire(timeout=10)


@linux
def test_on_one_host_a_unix_socket_comes_first():
    """It needs no certificate, and TCP is not tried."""
    identity = new_identity()
    with answering(Answering(None, name=fresh_name()), Answering(identity)) as (near, far):
        at = doors(identity, near.address, far.address)
        at.dial(5).close()
        assert near.hung_up.acquire(timeout=10)
        assert (near.heard, far.heard) == ([at.secret], [])
        # Executors on other hosts do not have it.
        other = doors(identity, fresh_name(), far.address)
        other.dial(5).close()
        assert far.hung_up.acquire(timeout=10)
        assert far.heard == [other.secret]


LISTENING = """
import os, socket, sys
os.setuid(4711)
listening = socket.socket(fileno=int(sys.argv[1]))
listening.listen()
print("ready", flush=True)
sys.stdin.read()
"""
CALLING = """
import os, socket, sys
os.setuid(4711)
caller = socket.socket(socket.AF_UNIX)
caller.connect("\\0" + sys.argv[1])
print("ready", flush=True)
print(caller.recv(1))
"""


@contextmanager
def another_user(code, argument, *descriptors):
    """A process that becomes another user's once it has started, because that one may have no Python."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", code, str(argument)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=descriptors,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@linux
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_on_one_host_another_user_is_not_believed():
    """Neither as a receiver, which would be told the secret, nor as a caller, whatever it knows."""
    name = fresh_name()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(name)
        # The one who listens is the one whose user counts.
        with another_user(LISTENING, listening.fileno(), listening.fileno()):
            # As if nobody were there: executors of another user come by TCP.
            with pytest.raises(NotThereError, match="of user 4711"):
                doors(None, name).dial(5)
            listening.accept()[0].close()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(name)
        listening.listen()
        with another_user(CALLING, name[1:]) as caller:
            connected, _ = listening.accept()
            with pytest.raises(OSError, match="of user 4711"):
                Line(connected, None, 5, dialled=False)
            assert caller.stdout.readline() == "b''\n"


def test_a_line_over_a_network_is_never_without_a_certificate():
    """Even if a plan names none."""
    with answering(Answering(new_identity())) as (receiver,), pytest.raises(OSError, match="needs a certificate"):
        doors(None, receiver.address).dial(5)


def test_what_a_process_remembers_is_bounded(monkeypatch):
    """Executors live for months, and see many receivers."""
    monkeypatch.setattr(calls, "_MOST_REMEMBERED", 3)
    identity = new_identity()
    with answering(Answering(identity)) as (receiver,):
        for _ in range(10):
            doors(identity, receiver.address).dial(5).close()
            assert len(calls.reached) <= 3


def test_the_address_of_sparks_driver_is_tried_as_well():
    """Its name, or an address that is translated, leads to the receiver's port where its own addresses do not."""
    identity = new_identity()
    with answering(Answering(identity)) as (receiver,):
        # Nobody is at that port of another address of this host.
        at = doors(identity, ("127.0.0.2", receiver.address[1]))
        with pytest.raises(NotThereError):
            at.dial(5)
        at.also_at("localhost").dial(5).close()
        assert receiver.hung_up.acquire(timeout=10)
        assert receiver.heard == [at.secret]
    assert at.also_at(None) == at
    assert at.also_at("127.0.0.2") == at
    assert at.also_at("[::1]").addresses == (("::1", receiver.address[1]), *at.addresses)
    near = doors(None, fresh_name())
    assert near.also_at("10.0.0.4") == near
