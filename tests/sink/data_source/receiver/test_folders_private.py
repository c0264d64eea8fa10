"""The folder that only one user may enter, and what commits note there for later plans."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from pgonce.sink.data_source.receiver.folders import Found, Note, is_private, note_of, private_folder

WRITER = ("/checkpoints/orders", "public.orders")
HOUR, DAY = 3600, 86400
STAGED = Found("10.0.0.4")
UNREACHED = Found("10.0.0.4", is_unreached=True)


@pytest.fixture(autouse=True)
def temporary(monkeypatch, tmp_path):
    """The host's temporary directory, for this test alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


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
    note = note_of(WRITER, 7)
    assert note.read() is None
    assert note.write(STAGED)
    assert note.read() == STAGED
    assert note_of(WRITER, 8).read() == STAGED
    assert note_of(("/checkpoints/orders", "public.items"), 7).read() is None
    # Said once.
    assert not note.write(STAGED)
    assert note.write(UNREACHED)
    # Spark's driver listens elsewhere now.
    assert note.write(Found("10.0.0.5"))


@pytest.mark.parametrize("written", ["", "staged 7", "[]", "{}"])
def test_a_note_that_cannot_be_read_says_nothing(written):
    """An earlier version may have written it."""
    note = note_of(WRITER, 7)
    Path(note.path).write_text(written)
    assert note.read() is None
    assert note.write(STAGED)


def test_nobody_having_found_a_receiver_holds_for_an_hour_and_one_application():
    """Networks change, and the next application may be on another one; that batches are large is remembered."""
    note = note_of(WRITER, 7)
    note.write(UNREACHED)
    assert note.read() == UNREACHED
    assert note_of(WRITER, 8).read() == STAGED
    assert aged(note, HOUR - 60) == UNREACHED
    assert aged(note, HOUR + 60) == STAGED
    assert aged(note, 29 * DAY) == STAGED
    assert aged(note, 31 * DAY) is None


def test_a_note_is_not_written_where_others_could_read_it(temporary):
    """Nor is it an error if it cannot be written: the next batch finds out the same."""
    note = note_of(WRITER, 7)
    Path(note.path).parent.chmod(0o777)
    assert not note.write(STAGED)
    assert not Note(str(temporary / "missing" / "a.note"), "7").write(STAGED)
    assert note.read() is None
