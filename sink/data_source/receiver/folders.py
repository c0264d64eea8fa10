"""
The folder of a receiver, in which it keeps the rows of its batches: a file for each batch.

Named by the planner's worker when it offers a receiver, made when that is started, used in the receiver and the commit
worker. Invariant: a folder belongs to one user and lets no other in. It is removed when its receiver has nothing to do
any more. One that was left over because processes were killed is removed when the next receiver starts: at once if its
driver is gone, else after hours, or after a week if it keeps rows.
"""

from __future__ import annotations

import json
import logging
import secrets
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from uuid import UUID

from .host_process import HostProcess
from .private_folder import is_private

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
