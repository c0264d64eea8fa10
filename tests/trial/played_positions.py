"""
Play a history of ``model/by_position.pml`` with the real commit, as :mod:`trial.played_history` does.

Runs in: pytest. Invariant: Spark is played, with the entries that it writes late or never; all else is real, also what
drops the rows that are stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from support.ledger_model import Plan
from support.ledger_site import STRUCT, encoded
from trial.played_history import SOURCE, Driver, PlayedHistory

from pgonce.offsets_store.checkpoint.log_entries import parse_offset_log
from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.verdict.facts import PlannedBatch
from pgonce.sink.data_source.promise import Promise, promised_rows
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.foreach_batch.batch_writer import span_of_range
from pgonce.sink.identity.from_checkpoint import Origin, describe_batch
from pgonce.sink.options.position_columns import PositionColumns
from pgonce.sink.positions import encoded_rows
from pgonce.sink.writing.rows import Rows

_COLUMNS = PositionColumns("topic", "partition", "position")
_NOT_STAGED: Any = None


@dataclass
class PlayedPositions(PlayedHistory):
    """A history in which rows carry their positions; batches are described as in ``foreachBatch``."""

    filtered: int = -1

    def filter(self, record: str) -> None:
        self.filtered = int(record)

    def described(self, driver: Driver) -> PlannedBatch:
        plan, folder = driver.plan, driver.folder
        assert plan
        origin = Origin(folder.query_id, driver.run_id, driver.number, None)
        begins_at = {"0": SOURCE.offsets(0, plan.start)} if driver.number else None
        planned = parse_offset_log(plan.text, "the plan")
        batch = describe_batch(Checkpoint(folder), origin, None, planned, begins_at, is_written=False)
        return replace(batch, span=span_of_range(batch.start, batch.end))

    def rows_of(self, plan: Plan) -> Rows:
        selected = self._selected(plan)
        places = _places(selected)
        rows = encoded_rows(encoded(SOURCE, selected), len(places), places)
        return promised_rows(encoded_columns(STRUCT), _COLUMNS, Promise("inline", {}, (rows,)), tuple, _NOT_STAGED)

    def stored(self, driver: Driver) -> None:
        assert driver.plan
        there = {position for position, _ in self.rows}
        self.rows += [(at, driver.plan.label) for at in self._selected(driver.plan).positions if at not in there]

    def _selected(self, plan: Plan) -> Plan:
        """What the query selects: one record less, at one end, because a batch has at most two."""
        lacks_first, lacks_last = plan.start == self.filtered, plan.end - 1 == self.filtered
        return replace(plan, start=plan.start + lacks_first, end=max(plan.start + lacks_first, plan.end - lacks_last))


def _places(plan: Plan) -> pa.RecordBatch:
    """The positions of its rows, as a task takes them from its columns."""
    positions = list(plan.positions)
    topics = pa.array(["orders"] * len(positions), pa.string()).dictionary_encode()
    return pa.record_batch(
        [topics, pa.array([0] * len(positions), pa.int32()), pa.array(positions, pa.int64())],
        names=["topic", "partition", "offset"],
    )
