"""
Read the files of a checkpoint, in the file systems where Spark keeps them.

Runs in the planner worker, the commit worker and the driver. Invariant: a location means here what it means to Spark
(Hadoop takes its characters literally, without percent-decoding), and no error shows credentials.

Local files are read with plain ``open``. pyarrow.fs is imported only for other file systems, because importing and
using it costs more than all the reading that a micro-batch needs.
"""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, TypeVar

from ..errors import CheckpointError

T = TypeVar("T")
Failed = Callable[[str, str], CheckpointError]
"""Makes an error of a path and of what the file system said of it."""

_S3_PATIENCE = {"connect_timeout": 10.0, "request_timeout": 30.0}
_PAUSES = (0.1, 0.4, 1.6)
# Errors of a store that a second try would give again.
_FOR_GOOD = ("ACCESS_DENIED", "NO_SUCH_BUCKET", "INVALID_ACCESS_KEY", "SIGNATURE_DOES_NOT_MATCH", "EXPIRED_TOKEN")
# Hadoop's schemes, and pyarrow's names for the same stores.
_ARROW_SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "hdfs": "hdfs",
    "viewfs": "viewfs",
    "abfs": "abfs",
    "abfss": "abfss",
    "gs": "gs",
}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_AUTHORITY_AND_PATH = re.compile(r"//([^/?]*)(.*)", re.DOTALL)
# A secret key may hold slashes, so user:secret reaches to the last @. A port (host:8020/) is not a secret.
_LOGIN = re.compile(r"//(?:[^/@]*:(?!\d+/).*@|[^/@]*@)", re.DOTALL)
# abfss://container@account is an address; only a part behind a colon would be a secret.
_AZURE_SECRET = re.compile(r"(//[^/@:]*):.*@", re.DOTALL)


class CheckpointFiles(ABC):
    """The operations that reading a checkpoint needs. Names are relative to it, with slashes."""

    lists_late = False
    """Whether a file that can be read by its name may be missing in a listing."""
    read_by: Literal["python", "pyarrow", "spark"]
    """What reads them."""

    def __init__(self, shown: str) -> None:
        self.shown = shown
        """The location as it may be shown to people: without credentials."""

    def read(self, name: str) -> bytes | None:
        """The file's bytes; None if there is no such file."""
        return self.ask(self._read, name)

    def names(self, folder: str) -> list[str]:
        """
        The names in a folder, in no particular order; none if there is no such folder.

        An empty text is the checkpoint itself.
        """
        return self.ask(lambda path: self._names(path.rstrip("/")), folder) or []

    def exists(self, name: str) -> bool:
        """Whether there is such a file or folder."""
        return bool(self.ask(self._exists, name))

    @abstractmethod
    def ask(self, question: Callable[[str], T], name: str) -> T | None:
        """
        The answer of ``question``, which gets the full path of ``name``; None if nothing is there.

        :raises CheckpointError: CHECKPOINT_UNREADABLE, for what the file system says.
        """

    @abstractmethod
    def _read(self, path: str) -> bytes: ...

    @abstractmethod
    def _names(self, path: str) -> list[str]: ...

    @abstractmethod
    def _exists(self, path: str) -> bool: ...


def open_location(location: str) -> LocalFiles | ArrowFiles:
    """
    Find the way to read ``location``, without any I/O yet.

    :raises CheckpointError: CHECKPOINT_LOCATION.
    """
    if not location:
        raise _bad_location("The checkpoint location is empty.")
    match = _SCHEME.fullmatch(location)
    if not match:
        return LocalFiles(location)
    scheme, rest = match[1].lower(), match[2]
    shown = without_credentials(location)
    if scheme == "file":
        # Spark refuses these too: `Relative path in absolute URI`, and `Wrong FS` for any authority.
        if not rest.startswith("/") or (rest.startswith("//") and not rest.startswith("///")):
            raise _bad_location(f"The checkpoint location {shown} holds no absolute path.")
        return LocalFiles("/" + rest.lstrip("/"))
    if scheme not in _ARROW_SCHEMES:
        raise _bad_location(f"The checkpoint location {shown} has a scheme that Python cannot read.")
    parts = _AUTHORITY_AND_PATH.fullmatch(rest)
    if not parts or (not parts[1] and scheme not in {"hdfs", "viewfs"}):
        raise _bad_location(f"The checkpoint location {shown} names no bucket, container or host.")
    path, _, query = parts[2].partition("?")
    root = f"{_ARROW_SCHEMES[scheme]}://{parts[1]}/" + (f"?{query}" if query else "")
    return ArrowFiles(root, path, shown, has_secrets=shown != location)


def without_credentials(location: str) -> str:
    """The location as it may be shown and stored: without user information, and without a URI's query."""
    match = _SCHEME.fullmatch(location)
    if not match or match[1].lower() == "file":
        return location
    shown = location.partition("?")[0]
    if match[1].lower() in {"abfs", "abfss", "wasb", "wasbs"}:
        return _AZURE_SECRET.sub(r"\1@", shown, count=1)
    return _LOGIN.sub("//", shown, count=1)


def open_recorded(location: str | None) -> LocalFiles | ArrowFiles:
    """
    As :func:`open_location`, for a location that the ledger has: streaming roles can write it.

    What pgonce records has neither user information nor a query, and these could name another server, to which the
    credentials of this process would be shown.

    :raises CheckpointError: CHECKPOINT_LOCATION.
    """
    if location and without_credentials(location) != location:
        raise _bad_location(f"The checkpoint location {without_credentials(location)} was not recorded by pgonce.")
    return open_location(location or "")


class LocalFiles(CheckpointFiles):
    """A folder on this machine."""

    read_by = "python"

    def __init__(self, path: str) -> None:
        # Spark resolves a relative path in the driver's working directory, which its Python workers inherit.
        super().__init__(os.path.abspath(path))  # noqa: PTH100 (a Path costs more than the reading)

    def path(self, name: str) -> str:
        """The full path of ``name``."""
        return f"{self.shown}/{name}"

    def ask(self, question: Callable[[str], T], name: str, failed: Failed | None = None) -> T | None:
        """As in the base class; ``failed`` makes another error of what the file system says."""
        path = self.path(name)
        try:
            return question(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise (failed or unreadable)(path, str(error)) from error

    def _read(self, path: str) -> bytes:
        with open(path, "rb") as file:  # noqa: PTH123 (as above)
            return file.read()

    def _names(self, path: str) -> list[str]:
        return os.listdir(path)  # noqa: PTH208 (as above)

    def _exists(self, path: str) -> bool:
        return bool(os.stat(path))  # noqa: PTH116 (as above)


class ArrowFiles(CheckpointFiles):
    """
    A folder in an object store or in HDFS, read through pyarrow.fs.

    :param root: the store's URI for pyarrow, without the path, because pyarrow would percent-decode a path.
    """

    lists_late = True
    read_by = "pyarrow"

    def __init__(self, root: str, path: str, shown: str, *, has_secrets: bool) -> None:
        super().__init__(shown.rstrip("/"))
        self._root = root
        self._folder = path.strip("/")
        self._has_secrets = has_secrets

    def __getstate__(self) -> dict[str, Any]:
        # In another process the store is connected to again, because pyarrow's own copy of it may lack options.
        return {name: value for name, value in self.__dict__.items() if name != "_store_and_base"}

    @property
    def store(self) -> Any:
        """The file system as pyarrow has it, connected to when it is first asked for."""
        return self._store_and_base[0]

    def path(self, name: str) -> str:
        """The full path of ``name`` in the store."""
        return f"{self._store_and_base[1]}/{name}"

    @cached_property
    def _store_and_base(self) -> tuple[Any, str]:
        from pyarrow.fs import FileSystem

        store, base = FileSystem.from_uri(self._root)
        if store.type_name == "s3":
            # A URI cannot say how long to wait. Without this, an answer that took four seconds was given up.
            make_store, (settings,) = store.__reduce__()
            # These settings lack some of a URI's options (tls_verify_certificates, smart_defaults). A store that has
            # such an option is not the same as its copy; it keeps its own timeouts.
            if make_store(settings) == store:
                store = make_store({**settings, **_S3_PATIENCE})
        return store, f"{base.rstrip('/')}/{self._folder}".rstrip("/")

    def ask(self, question: Callable[[str], T], name: str, failed: Failed | None = None) -> T | None:
        """As in the base class; ``failed`` makes another error of what the store says."""
        failed = failed or unreadable
        try:
            return self._ask_again(question, name)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, NotImplementedError, ImportError) as error:
            path = f"{self.shown}/{name}"
            if not self._has_secrets:
                raise failed(path, str(error)) from error
            said = f"{type(error).__name__} (its text is left out, since the location holds credentials)"
        # Outside the except block, so that no traceback shows pyarrow's text either.
        raise failed(path, said)

    def _ask_again(self, question: Callable[[str], T], name: str) -> T:
        """Ask, and ask again where the store has failed: pyarrow itself does not, when a file's bytes break off."""
        for pause in _PAUSES:
            try:
                return question(self.path(name))
            except FileNotFoundError:
                raise
            except OSError as error:
                if any(word in str(error) for word in _FOR_GOOD):
                    raise
                time.sleep(pause)
        return question(self.path(name))

    def _read(self, path: str) -> bytes:
        with self.store.open_input_stream(path) as stream:
            return stream.read()

    def _names(self, path: str) -> list[str]:
        from pyarrow.fs import FileSelector

        return [info.base_name for info in self.store.get_file_info(FileSelector(path))]

    def _exists(self, path: str) -> bool:
        from pyarrow.fs import FileType

        return self.store.get_file_info(path).type != FileType.NotFound


def _bad_location(what: str) -> CheckpointError:
    return CheckpointError.usual(
        "CHECKPOINT_LOCATION",
        what,
        "Give the checkpoint as an absolute path, or as a URI that begins with file:/, s3a://, hdfs://, "
        "abfss:// or gs://. For a store that Python cannot read, use PostgresBatchWriter in foreachBatch: it "
        "asks the running query.",
    )


def unreadable(path: str, said: str) -> CheckpointError:
    """The error for a path of a checkpoint that is not missing, and that cannot be read."""
    return CheckpointError.usual(
        "CHECKPOINT_UNREADABLE",
        f"The checkpoint's {path} could not be read: {said}.",
        "Let the user that runs Spark's Python workers read the checkpoint. Stores other than disks are "
        "read through pyarrow, which takes credentials, region and endpoint from the environment (such as "
        "AWS_*), not from Spark's settings. Where only Spark can read the store, use PostgresBatchWriter in "
        "foreachBatch, which reads it through Spark.",
    )
