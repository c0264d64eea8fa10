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
from pgonce.sink.data_source.receiver.folders import Note, is_private, note_of, private_folder
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


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["of this daemon", "of another container"])
def test_without_its_receiver_a_batch_may_still_be_committed_for_a_week(is_elsewhere, living, gone):
    """A commit reads what is kept, in a worker of the daemon; process ids mean something else in another container."""
    elsewhere = replace(gone, place="another")
    young, old = (made(*((elsewhere, elsewhere) if is_elsewhere else (living, gone))) for _ in range(2))
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


WRITER = ("/checkpoints/orders", "public.orders")
DRIVER = "10.0.0.4"


def aged(note, seconds):
    """The same note, written earlier."""
    then = time.time() - seconds
    os.utime(note.path, (then, then))
    return note.read()


def test_it_is_this_users_alone(temporary):
    """It is made at the first use, and used again."""
    folder = private_folder()
    assert folder == private_folder() == temporary / f"pgonce-{os.geteuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("how", ["others may enter", "a link", "a file"])
def test_one_that_another_user_may_have_made_is_not_used(how, temporary):
    """In a directory where everybody writes, anybody may be faster."""
    folder = temporary / f"pgonce-{os.geteuid()}"
    if how == "others may enter":
        folder.mkdir()
        folder.chmod(0o755)
    elif how == "a link":
        (temporary / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(temporary / "elsewhere")
    else:
        folder.touch(mode=0o600)
    assert not is_private(folder)
    with pytest.raises(OSError, match="only this user"):
        private_folder()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_is_not_used(temporary):
    """Even if it lets nobody else in."""
    folder = temporary / f"pgonce-{os.geteuid()}"
    folder.mkdir(mode=0o700)
    os.chown(folder, 4711, 4711)
    assert not is_private(folder)


def test_a_note_is_of_one_writer():
    """Nothing is known of a writer at first, nor of others."""
    note = note_of(WRITER)
    assert note.read() is None
    note.write(DRIVER)
    assert note.read() == note_of(WRITER).read() == DRIVER
    assert note_of(("/checkpoints/orders", "public.items")).read() is None
    # Spark's driver listens elsewhere now.
    note.write("10.0.0.5")
    assert note.read() == "10.0.0.5"


@pytest.mark.parametrize("written", [b"", b"\xff"])
def test_a_note_that_cannot_be_read_says_nothing(written):
    """The disk may have been full."""
    note = note_of(WRITER)
    Path(note.path).write_bytes(written)
    assert note.read() is None
    note.write(DRIVER)
    assert note.read() == DRIVER


def test_that_batches_are_large_is_remembered_for_a_month():
    """So a run with a single large batch profits from the run before."""
    note = note_of(WRITER)
    note.write(DRIVER)
    assert aged(note, 29 * DAY) == DRIVER
    assert aged(note, 31 * DAY) is None


def test_a_note_is_not_written_where_others_could_read_it(temporary):
    """Nor is it an error if it cannot be written: the next batch finds out the same."""
    note = note_of(WRITER)
    Path(note.path).parent.chmod(0o777)
    note.write(DRIVER)
    Note(str(temporary / "missing" / "a.driver")).write(DRIVER)
    assert note.read() is None
