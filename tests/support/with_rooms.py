"""
What writes rows, as those who call it do: with every room.

Runs in: pytest, and the benchmarks. Invariant: nothing here needs a data source written in Python, which PySpark 3.5
does not have.
"""

from __future__ import annotations

from functools import partial

from pgonce.every_room import EVERY_ROOM
from pgonce.sink import read_rows
from pgonce.sink.foreach_batch import frame_rows
from pgonce.sink.writing import first_look, write_batch

look_at_table = partial(first_look.look_at_table, rooms=EVERY_ROOM)
look_once = partial(first_look.look_once, rooms=EVERY_ROOM)
reader_of = partial(read_rows.reader_of, rooms=EVERY_ROOM)
work_into = partial(write_batch.work_into, rooms=EVERY_ROOM)
write_batch_in_tx = partial(write_batch.write_batch_in_tx, rooms=EVERY_ROOM)


def arriving_rows(frame, where, positions=None, batch=None):
    """The rows of a frame, read as ``where`` says."""
    return frame_rows.arriving_rows(frame, reader_of(where, frame.schema), where, positions, batch)
