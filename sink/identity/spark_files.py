"""
How are a checkpoint's files read if only Spark can read them?

Runs on the driver. Invariant: they are read through Spark's own file system, so Python needs no credentials for the
store, and no error shows any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from pgonce.offsets_store.checkpoint.files import CheckpointFiles, without_credentials
from pgonce.offsets_store.errors import NOTHING, CheckpointError

T = TypeVar("T")


class SparkFiles(CheckpointFiles):
    """A checkpoint's files, read by Spark's JVM: wherever Spark can read them, with Spark's credentials."""

    lists_late = True
    read_by = "spark"

    def __init__(self, root: str, session: SparkSession) -> None:
        super().__init__(without_credentials(root))
        self._root = root
        self._jvm: Any = session.sparkContext._jvm
        self._files = self._path(root).getFileSystem(session._jsparkSession.sessionState().newHadoopConf())

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def ask(self, question: Callable[[str], T], name: str) -> T | None:  # noqa: D102 (as in the base class)
        path = f"{self._root}/{name}"
        try:
            return question(path) if self._exists(path) else None
        except Py4JJavaError as error:
            raise CheckpointError(
                "CHECKPOINT_UNREADABLE",
                f"Spark could not read {self.shown}/{name}: {error.java_exception.getClass().getName()}.",
                NOTHING,
                "Find out what keeps the driver from reading its own checkpoint, and start the query again.",
            ) from None

    def _read(self, path: str) -> bytes:
        stream = self._files.open(self._path(path))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def _names(self, path: str) -> list[str]:
        return [entry.getPath().getName() for entry in self._files.listStatus(self._path(path))]

    def _exists(self, path: str) -> bool:
        return bool(self._files.exists(self._path(path)))
