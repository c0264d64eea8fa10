"""
The folders on a host: that of a receiver, with a file of rows for each batch, and the private one of this user.

The receiver's folder is named by the planner's worker when it offers a receiver, made by the receiver, used there and
in the commit worker. It is removed when its receiver has nothing to do any more. One that was left over because
processes were killed is removed when the next receiver starts: at once if Spark's daemon is gone, else after a week.

The private folder has notes about earlier batches. Invariant: a folder that another user owns, or may enter, is not
used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import UUID

from .host_process import HostProcess

_log = logging.getLogger("pgonce.receiver")

_PREFIX = "pgonce-receiver-"
_PROCESSES = "processes"
# Only the age is known of a folder that another container, or another host, has made on the same disk; and of one whose
# receiver is gone, because a batch that it has kept may still be running.
_ABANDONED_SECONDS = 7 * 24 * 3600.0


def new_folder_name() -> Path:
    """Return a folder in the temporary directory that is not there yet: that of a receiver that has not started."""
    return Path(tempfile.gettempdir()) / f"{_PREFIX}{secrets.token_hex(8)}"


def make_folder(folder: Path, daemon: HostProcess, receiver: HostProcess) -> None:
    """
    Make the folder of a receiver, and write down with which daemon of Spark's it ends, and which process it is itself.

    :raises OSError: if there is no room.
    """
    folder.mkdir(mode=0o700)
    (folder / _PROCESSES).write_text(json.dumps([asdict(one) for one in (daemon, receiver)]))


def process_of(folder: Path) -> HostProcess | None:
    """The process of the receiver that has this folder; None if it has not started, or has removed the folder."""
    # After it is removed, another user may make one of the same name, and write any process into it.
    found = _processes_of(folder) if is_private(folder) else None
    return found[1] if found else None


def _processes_of(folder: Path) -> tuple[HostProcess, HostProcess] | None:
    try:
        daemon, receiver = (HostProcess(**words) for words in json.loads((folder / _PROCESSES).read_text()))
    except (OSError, ValueError, TypeError):
        # It was killed before it could write them down.
        return None
    return daemon, receiver


def kept_file(folder: Path, token: UUID) -> Path:
    """The file of the batch with this token."""
    return folder / token.hex


def remove_batch(folder: Path, token: UUID) -> None:
    """Remove what is kept of a batch."""
    with suppress(OSError):
        kept_file(folder, token).unlink()


def remove(folder: Path) -> None:
    """Remove the folder with all that is in it."""
    shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers() -> None:
    """Remove the folders of this user whose daemons are gone, or whose receivers have been gone for a week."""
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
    daemon, receiver = _processes_of(folder) or (None, None)
    if daemon and daemon.is_of_this_place and not daemon.lives():
        return True
    return untouched > _ABANDONED_SECONDS and not (receiver and receiver.lives())


# A note from an application that is gone is only of use to its successors.
_NOTE_SECONDS = 30 * 86400.0


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


@dataclass(frozen=True)
class Note:
    """
    That a batch of one writer had to stage large partitions, because no receiver was offered to executors on other
    hosts.

    It has the address or the name at which Spark's driver listens for its executors, for the plans of later batches.

    :param path: of its file.
    """

    path: str

    def read(self) -> str | None:
        """Where the driver listens; None if nothing was noted."""
        try:
            driver = Path(self.path).read_text()
            age = time.time() - Path(self.path).stat().st_mtime
        except (OSError, ValueError):
            return None
        return driver if driver and age < _NOTE_SECONDS else None

    def write(self, driver: str) -> None:
        """Write it down, if that can be done; if it cannot, a later batch finds out the same."""
        path = Path(self.path)
        if self.read() == driver or not is_private(path.parent):
            return
        with suppress(OSError):
            # Not written over, so that a reader finds all of it.
            new = path.with_suffix(f".{os.getpid()}")
            new.write_text(driver)
            new.replace(path)


def note_of(writer: tuple[str, str]) -> Note:
    """
    The note about a writer (its checkpoint's location and its sink's label).

    :raises OSError: if there is no folder for it.
    """
    name = hashlib.sha256("\n".join(writer).encode()).hexdigest()[:32]
    return Note(str(private_folder() / f"{name}.driver"))
