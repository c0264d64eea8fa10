"""
A driver that notes what each of its Python processes has imported for a batch of format("pgonce").

Runs in: a process of its own, started by a test with a JSON object. Invariant: the data source is as it is, and a
process writes down its modules when its part of the batch is done, before Spark goes on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pgonce.sink.data_source.spark_interface import StreamWriter
from pyspark_pgonce import DefaultSource


def note(directory: str, process: str) -> None:
    """Leave the names of all modules that are loaded here."""
    Path(directory, process).write_text("\n".join(sys.modules))


class Noting(DefaultSource):
    """The data source; option ``path``, which is one of Spark's own, is the folder for the notes."""

    @classmethod
    def name(cls):
        return "noting"

    def streamWriter(self, schema, overwrite):
        made = super().streamWriter(schema, overwrite)
        if self._plans:
            note(self.options["path"], "planner")
        return NotingWriter(made.options, made.task_writer, made.rooms, self.options["path"])


class NotingWriter(StreamWriter):
    def __init__(self, options, task_writer, rooms, path):
        super().__init__(options, task_writer, rooms)
        self.path = path

    def write(self, iterator):
        parcel = super().write(iterator)
        note(self.path, "task")
        return parcel

    def commit(self, messages, batchId):
        super().commit(messages, batchId)
        note(self.path, "commit")


def main(url: str, directory: str, settings: dict[str, str], variants: dict[str, dict[str, str]]) -> None:
    """Run a query of one batch for each of the ``variants``, by the name of the folder with its notes."""
    from support.spark_session import started_session

    session = started_session("pgonce-imports", settings)
    session.dataSource.register(Noting)
    source = Path(directory, "source")
    source.mkdir()
    (source / "1.json").write_text('{"id": 1}')
    frame = session.readStream.schema("id long").json(str(source))
    for name, options in variants.items():
        notes = Path(directory, name)
        notes.mkdir()
        stream = frame.writeStream.format("noting").options(url=url, table="events", independent="true", **options)
        placed = stream.option("path", str(notes)).option("checkpointLocation", str(Path(directory, f"{name}-ckpt")))
        placed.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
