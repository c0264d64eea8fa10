"""A receiver's folder lets nobody else in, and does not stay once its driver is gone."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pgonce.sink.data_source.receiver import folders
from pgonce.sink.data_source.receiver.host_process import host_process

DAY = 86_400


@pytest.fixture(autouse=True)
def temporary(monkeypatch, tmp_path):
    """The temporary directory of this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def gone():
    """A process that has ended."""
    process = subprocess.Popen(["sleep", "100"])
    found = host_process(process.pid)
    process.kill()
    process.wait()
    return found


@pytest.fixture
def living():
    """A process that lives: this one."""
    return host_process(os.getpid())


def made(daemon, receiver):
    """The folder of a receiver of this daemon."""
    folder = folders.new_folder_name()
    folders.make_folder(folder, daemon, receiver)
    return folder


def age(folder, seconds):
    """Nothing in the folder was touched for so long."""
    for path in (*folder.iterdir(), folder):
        os.utime(path, times=(time.time() - seconds,) * 2)


def test_a_folder_is_for_this_user_alone(living, temporary):
    """Nobody else may list it or enter it."""
    folder = made(living, living)
    assert folder.parent == temporary
    assert folder.stat().st_mode & 0o777 == 0o700
    folders.remove(folder)
    assert not folder.exists()
    folders.remove(folder)


def test_what_another_user_has_put_there_is_not_believed(living, monkeypatch):
    """Once a receiver has removed its folder, anybody may make one of that name, and have us end our own processes."""
    folder = made(living, living)
    assert folders.process_of(folder) == living
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    assert folders.process_of(folder) is None


def test_the_folder_of_a_driver_that_is_gone_is_left_over(living, gone):
    """Its state decides, however young it is; that of a driver and a receiver that live stays, however old it is."""
    left, used = made(gone, gone), made(living, living)
    (left / "rows").touch()
    age(used, 100 * DAY)
    folders.remove_leftovers()
    assert (left.exists(), used.exists()) == (False, True)


def test_without_its_receiver_a_batch_may_still_be_committed_for_a_week(living, gone):
    """A commit reads what is kept, in a worker of this daemon."""
    young, old = (made(living, gone) for _ in range(2))
    age(young, DAY)
    age(old, 30 * DAY)
    folders.remove_leftovers()
    assert (young.exists(), old.exists()) == (True, False)


def test_of_another_containers_folder_only_its_age_is_known(gone):
    """Process ids mean something else there."""
    elsewhere = replace(gone, place="another")
    young, old = (made(elsewhere, elsewhere) for _ in range(2))
    age(young, DAY)
    age(old, 30 * DAY)
    folders.remove_leftovers()
    assert (young.exists(), old.exists()) == (True, False)


@pytest.mark.parametrize("written", [None, "", "[]", json.dumps([{"pid": 1}]), "no JSON"])
def test_a_folder_that_does_not_say_whose_it_is_is_left_over_after_a_week(written, living):
    """Its receiver was killed before it could."""
    folder = made(living, living)
    if written is None:
        (folder / "processes").unlink()
    else:
        (folder / "processes").write_text(written)
    folders.remove_leftovers()
    assert folder.exists()
    age(folder, 30 * DAY)
    folders.remove_leftovers()
    assert not folder.exists()


def test_nothing_else_is_removed(gone, temporary):
    """Neither what a link leads to, nor a file, nor a folder of another name."""
    elsewhere = temporary / "of the user"
    elsewhere.mkdir()
    (temporary / "pgonce-receiver-link").symlink_to(elsewhere)
    (temporary / "pgonce-receiver-file").touch()
    folders.remove_leftovers()
    assert {path.name for path in Path(temporary).iterdir()} == {
        "of the user",
        "pgonce-receiver-link",
        "pgonce-receiver-file",
    }
