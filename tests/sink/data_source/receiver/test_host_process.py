"""A process is known by more than its id, and no other one is ended."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace

import pytest
from support.fixtures.driver import wait_until

from pgonce.sink.data_source.receiver import host_process as module
from pgonce.sink.data_source.receiver.host_process import host_process


@pytest.fixture
def sleeping():
    """A process that does nothing."""
    process = subprocess.Popen(["sleep", "100"])
    yield process
    process.kill()
    process.wait()


def test_a_process_lives_until_it_has_ended(sleeping):
    """One that is stopped lives; one that has ended does not, even before its parent has asked for its exit code."""
    found = host_process(sleeping.pid)
    assert found.lives()
    sleeping.send_signal(signal.SIGSTOP)
    assert found.lives()
    assert found.kill()
    assert not found.lives()
    assert not found.kill()
    assert sleeping.wait() == -signal.SIGKILL
    assert not found.lives()


@pytest.mark.parametrize("other", [{"started": "1"}, {"place": "another container"}])
def test_another_process_with_the_same_id_is_not_ended(other, sleeping):
    """An id is given again, and means another process elsewhere."""
    found = replace(host_process(sleeping.pid), **other)
    assert not found.lives()
    assert not found.kill()
    assert sleeping.poll() is None


def test_a_process_that_may_not_be_ended_is_left(sleeping, monkeypatch):
    """The caller is told, and no error gets out."""

    def kill(*_):
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(module, "_GONE_SECONDS", 0.1)
    assert not host_process(sleeping.pid).kill()
    assert sleeping.poll() is None


def test_one_that_had_already_ended_when_it_was_named_does_not_live(sleeping):
    """Nor after its id has gone to nobody."""
    sleeping.kill()
    assert wait_until(lambda: not host_process(sleeping.pid).started)
    found = host_process(sleeping.pid)
    assert not found.lives()
    sleeping.wait()
    assert not found.lives()
    assert not found.kill()
