"""The folder that only one user may enter, its sockets, and what commits note there for later plans."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from pgonce.sink.data_source.receiver import folders as module
from pgonce.sink.data_source.receiver.folders import (
    Note,
    is_private,
    listen_in_folder,
    note_of,
    private_folder,
)

WRITER = ("/checkpoints/orders", "public.orders")
HOUR, DAY = 3600, 86400


@pytest.fixture(autouse=True)
def temporary(monkeypatch, tmp_path):
    """The host's temporary directory, for this test alone."""
    # A path of pytest's may be too long for a socket.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


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
    with pytest.raises(OSError, match="only this user"):
        listen_in_folder()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_is_not_used(temporary):
    """Even if it lets nobody else in."""
    folder = temporary / f"pgonce-{os.geteuid()}"
    folder.mkdir(mode=0o700)
    os.chown(folder, 4711, 4711)
    assert not is_private(folder)


def test_each_socket_has_a_place_until_nobody_has_it_open(temporary):
    """Processes that are killed leave their places to others, so the folder does not fill up."""
    first, place = listen_in_folder()
    second, other = listen_in_folder()
    assert first.getsockname() != second.getsockname()
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=[place]
    )
    path = first.getsockname()
    first.close()
    os.close(place)
    third, third_place = listen_in_folder()
    assert third.getsockname() not in (path, second.getsockname())
    child.kill()
    child.communicate()
    again, again_place = listen_in_folder()
    assert again.getsockname() == path
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(path)
    assert len(list((temporary / f"pgonce-{os.geteuid()}").iterdir())) == 6
    for opened in (second, third, again):
        opened.close()
    for descriptor in (other, third_place, again_place):
        os.close(descriptor)


def test_a_temporary_directory_with_a_long_path_has_no_sockets(temporary, monkeypatch):
    """A socket's path has at most 107 bytes; that is no error for a user."""
    long = temporary / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    for _ in range(3):
        with pytest.raises(OSError, match="AF_UNIX path too long"):
            listen_in_folder()


def test_too_many_receivers_are_an_error(monkeypatch):
    """A host that has more than its places has something wrong."""
    monkeypatch.setattr(module, "_MOST_PLACES", 1)
    first, place = listen_in_folder()
    with pytest.raises(OSError, match="has 1 receivers"):
        listen_in_folder()
    first.close()
    os.close(place)


def test_a_note_is_of_one_writer():
    """Nothing is known of a writer at first, nor of others."""
    note = note_of(WRITER, 7)
    assert note.read() is None
    assert note.write("staged")
    assert note.read() == "staged"
    assert note_of(WRITER, 8).read() == "staged"
    assert note_of(("/checkpoints/orders", "public.items"), 7).read() is None
    # Said once.
    assert not note.write("staged")
    assert note.write("unreached")


def test_nobody_having_found_a_receiver_holds_for_an_hour_and_one_application():
    """Networks change, and the next application may be on another one; that batches are large is remembered."""
    note = note_of(WRITER, 7)
    note.write("unreached")
    assert note.read() == "unreached"
    assert note_of(WRITER, 8).read() == "staged"
    assert aged(note, HOUR - 60) == "unreached"
    assert aged(note, HOUR + 60) == "staged"
    assert aged(note, 29 * DAY) == "staged"
    assert aged(note, 31 * DAY) is None


def test_old_notes_are_removed():
    """Those of queries that are gone do not stay for ever."""
    old = note_of(("/gone", "t"), 7)
    old.write("staged")
    aged(old, 31 * DAY)
    note_of(WRITER, 7).write("staged")
    assert not Path(old.path).exists()


def test_a_note_is_not_written_where_others_could_read_it(temporary):
    """Nor is it an error if it cannot be written: the next batch finds out the same."""
    note = note_of(WRITER, 7)
    Path(note.path).parent.chmod(0o777)
    assert not note.write("staged")
    assert not Note(str(temporary / "missing" / "a.note"), "7").write("staged")
    assert note.read() is None
