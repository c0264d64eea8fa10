"""
The folder of this user on a host: sockets of receivers for tasks on the same host, and notes about earlier batches.

Used in the planner's worker, the commit worker and tasks. Invariant: a folder that another user owns, or may enter, is
not used. What stays in it is as much as there ever was at the same time: the place of a receiver that is gone is taken
by the next one.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_MOST_PLACES = 256
# Tasks that call at the same time wait here until the receiver has started.
BACKLOG = 128
# A note from an application that is gone is only of use to its successors.
_NOTE_DAYS = 30.0
# Networks and firewalls change while an application runs.
_UNREACHED_SECONDS = 3600.0
_DAY_SECONDS = 86400.0

Found = Literal["staged", "unreached"]
"""What a batch had to do with its large partitions: stage some, or stage all, though executors on other hosts were
told how to reach a receiver."""


def private_folder() -> Path:
    """
    Return the folder in this host's temporary directory; made if it is missing.

    :raises OSError: if there is none that only this user may enter.
    """
    folder = Path(tempfile.gettempdir()) / f"pgonce-{os.geteuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not is_private(folder):
        raise PermissionError(f"{folder} is not a folder that only this user may enter")
    return folder


def is_private(folder: Path) -> bool:
    """Whether this is a folder of this user, and no other may enter it."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    is_ours = found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077
    return is_ours and stat.S_ISDIR(found.st_mode)


def listen_in_folder() -> tuple[socket.socket, int]:
    """
    Listen at a socket in the folder.

    :return: the socket, and a descriptor: the place in the folder is taken as long as a process has that open. No
        process can be killed so hard that its place stays taken.
    :raises OSError: if there is no such folder, or if its path is too long for a socket.
    """
    # Not on Windows, where Spark has no workers that are used again.
    import fcntl

    folder = private_folder()
    for number in range(_MOST_PLACES):
        taken = os.open(folder / f"{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(taken, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path = folder / str(number)
            path.unlink(missing_ok=True)
            listening = socket.socket(socket.AF_UNIX)
            try:
                listening.bind(str(path))
                listening.listen(BACKLOG)
            except BaseException:
                listening.close()
                raise
        except BlockingIOError:
            os.close(taken)
            continue
        except BaseException:
            os.close(taken)
            raise
        return listening, taken
    raise OSError(f"{folder} has {_MOST_PLACES} receivers")


@dataclass(frozen=True)
class Note:
    """
    What the commits of one writer's batches have found out for the plans of later ones.

    :param path: of its file.
    :param application: names the application that writes and reads it.
    """

    path: str
    application: str

    def read(self) -> Found | None:
        """
        What was found out, if anything.

        That no executor reached a receiver holds for an hour, and for the application that has found it out.
        """
        try:
            found, _, application = Path(self.path).read_text().partition(" ")
            age = time.time() - Path(self.path).stat().st_mtime
        except OSError:
            return None
        if found == "unreached" and application == self.application and age < _UNREACHED_SECONDS:
            return "unreached"
        return "staged" if age < _NOTE_DAYS * _DAY_SECONDS else None

    def write(self, found: Found) -> bool:
        """Write it down; False if it says so already, or cannot be written."""
        path = Path(self.path)
        if self.read() == found or not is_private(path.parent):
            return False
        try:
            # Not written over, so that a reader finds all of it.
            new = path.with_suffix(f".{os.getpid()}")
            new.write_text(f"{found} {self.application}")
            new.replace(path)
            for other in path.parent.glob("*.note"):
                if time.time() - other.stat().st_mtime > _NOTE_DAYS * _DAY_SECONDS:
                    other.unlink()
        except OSError:
            return False
        return True


def note_of(writer: tuple[str, str], application: int) -> Note:
    """
    The note about a writer (its checkpoint's location and its sink's label).

    :param application: the process id of Spark's daemon.
    :raises OSError: if there is no folder for it.
    """
    name = hashlib.sha256("\n".join(writer).encode()).hexdigest()[:32]
    return Note(str(private_folder() / f"{name}.note"), str(application))
