"""
The folders on a host: that of a receiver, with a file of rows for each batch, and the private one of this user.

The receiver's folder is named by the planner's worker when it offers a receiver, made when that is started, used in the
receiver and the commit worker. It is removed when its receiver has nothing to do any more. One that was left over
because processes were killed is removed when the next receiver starts: at once if its driver is gone, else after hours,
or after a week if it keeps rows.

The private folder has the sockets of receivers for tasks on the same host, and notes about earlier batches; tasks use
it too. What stays in it is as much as there ever was at the same time: the place of a receiver that is gone is taken by
the next one. Invariant: a folder that another user owns, or may enter, is not used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
import socket
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal
from uuid import UUID

from .host_process import HostProcess

_log = logging.getLogger("pgonce.receiver")

_PREFIX = "pgonce-receiver-"
_OWNERS = "owners"
_RECEIVER = "receiver"
# The planner's worker writes down at once whose the folder is.
_UNOWNED_SECONDS = 60.0
# A driver that has lost Spark's daemon goes on, and its last batch may take that long. A receiver starts much sooner.
_WITHOUT_PROCESS_SECONDS = 6 * 3600.0
# Only the age is known of a folder that another container, or another host, has made on the same disk; and of a batch
# whose receiver is gone, and which may still be running.
_ABANDONED_SECONDS = 7 * 24 * 3600.0


def new_folder_name() -> Path:
    """Return a folder in the temporary directory that is not there yet: that of a receiver that has not started."""
    return Path(tempfile.gettempdir()) / f"{_PREFIX}{secrets.token_hex(8)}"


def make_folder(folder: Path, driver: HostProcess, daemon: HostProcess) -> None:
    """
    Make the folder for a receiver of this driver, which is started under this daemon.

    :raises OSError: if there is no room.
    """
    folder.mkdir(mode=0o700)
    (folder / _OWNERS).write_text(json.dumps([asdict(driver), asdict(daemon)]))


def note_process(folder: Path, receiver: HostProcess) -> None:
    """Write down which process the receiver is, before it is told of any batch."""
    (folder / _RECEIVER).write_text(json.dumps(asdict(receiver)))


def process_of(folder: Path) -> HostProcess | None:
    """The process of the receiver that has this folder; None if it has not started, or has removed the folder."""
    if not is_private(folder):
        # After it is removed, another user may make one of the same name, and write any process into it.
        return None
    try:
        return HostProcess(**json.loads((folder / _RECEIVER).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def kept_file(folder: Path, token: UUID) -> Path:
    """The file of the batch with this token."""
    return folder / token.hex


def remove_batch(folder: Path, token: UUID) -> None:
    """Remove what is kept of a batch."""
    with suppress(OSError):
        kept_file(folder, token).unlink()


def remove_if_empty(folder: Path) -> None:
    """Remove the folder of a receiver that is gone, once no batch is kept there."""
    with suppress(OSError):
        if all(path.name in (_OWNERS, _RECEIVER) for path in folder.iterdir()):
            remove(folder)


def remove(folder: Path) -> None:
    """Remove the folder with all that is in it."""
    shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers() -> None:
    """Remove the folders of this user whose drivers are gone, or whose receivers have been gone for long."""
    with suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            if is_private(folder) and _is_left_over(folder):
                _log.info("removing what a receiver has left behind: %s", folder)
                remove(folder)


def _is_left_over(folder: Path) -> bool:
    try:
        untouched = time.time() - max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except OSError:
        # It is being removed.
        return False
    try:
        driver, daemon = (HostProcess(**words) for words in json.loads((folder / _OWNERS).read_text()))
    except (OSError, ValueError, TypeError):
        return untouched > _UNOWNED_SECONDS
    if not driver.is_of_this_place:
        return untouched > _ABANDONED_SECONDS
    if not daemon.lives():
        return not driver.lives() or untouched > _WITHOUT_PROCESS_SECONDS
    # Without a daemon of Spark's, workers are children of the driver's JVM, and the shell above it may have ended.
    receiver = process_of(folder)
    if receiver is not None and receiver.lives():
        return False
    keeps_rows = any(path.name not in (_OWNERS, _RECEIVER) for path in folder.iterdir())
    return untouched > (_ABANDONED_SECONDS if keeps_rows else _WITHOUT_PROCESS_SECONDS)


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
