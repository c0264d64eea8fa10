"""Does the ledger say the same as a progress event?"""

from __future__ import annotations

from uuid import uuid4

import pytest
from support.ledger_history import RUN
from support.progress_events import heard

from pgonce.offsets_store.progress.event import LedgerSide, disagreement


class TestDisagreement:
    @pytest.mark.parametrize(
        ("recorded", "told", "agrees"),
        [
            ({"0": {"t": {"0": 1, "1": 2}}}, {"0": {"t": {"1": 2, "0": 1}}}, True),
            ({"0": {"t": {"0": 1}}}, {"0": {"t": {"0": 2}}}, False),
            ({"0": 3, "1": 4}, {"0": 4, "1": 3}, False),
            ({"0": 3}, {"0": 3, "1": 4}, False),
            ({"0": None, "1": 4}, {"0": None, "1": 4}, True),
            ({"left": 3, "right": 4}, {"0": 4, "1": 3}, True),
            ({"left": 3, "right": 3}, {"0": 3, "1": 4}, False),
            (None, {"0": 3}, True),
        ],
    )
    def test_what_counts_as_the_same(self, recorded, told, agrees):
        """Key order is nothing, positions count, named sources match by value, and unknown is no disagreement."""
        side = LedgerSide("s", RUN, 0, is_recorded=True, end_offsets=recorded)
        assert (disagreement(heard(end=told), [side]) is None) == agrees

    def test_what_another_run_left_out(self):
        """A sink that this run has not fed may have been dropped from the query: that is nobody's fault."""
        gone = LedgerSide("s", str(uuid4()), 0, is_recorded=False, end_offsets=None)
        short = LedgerSide("s", RUN, 0, is_recorded=False, end_offsets=None)
        pruned = LedgerSide("s", RUN, 9, is_recorded=False, end_offsets=None)
        assert disagreement(heard(batch_id=1), [gone]) is None
        assert "last one in sink 's' is 0" in disagreement(heard(batch_id=1), [short])
        assert disagreement(heard(batch_id=1), [pruned]) is None
