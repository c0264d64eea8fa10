"""Which batch Spark runs at the next start, and what each sink will say to it."""

from __future__ import annotations

import pytest
from support.stopped_query import checkpoint, entries, published_to

from pgonce.offsets_store.recovery.next_start import NextStart, next_start, verdict_on
from pgonce.offsets_store.verdict.decide import Verdict


class TestNextStart:
    @pytest.mark.parametrize(
        ("offsets", "commits", "expected"),
        [
            ((), (), NextStart(0, runs_again=False, after=None, lacks=None)),
            ((0,), (), NextStart(0, runs_again=True, after=None, lacks=None)),
            ((0,), (0,), NextStart(1, runs_again=False, after=0, lacks=None)),
            ((4, 5), (4,), NextStart(5, runs_again=True, after=4, lacks=None)),
            ((4, 5), (4, 5), NextStart(6, runs_again=False, after=5, lacks=None)),
            ((0, 1, 6), (0, 1, 6), NextStart(7, runs_again=False, after=6, lacks=5)),
            ((0, 1, 6), (0, 1), NextStart(6, runs_again=True, after=1, lacks=5)),
            ((4, 5), (4, 5, 6), NextStart(5, runs_again=True, after=4, lacks=None)),
        ],
    )
    def test_as_spark_does(self, offsets, commits, expected):
        """The newest entry runs again unless the newest commit is its own; a synchronous start wants the one before."""
        assert next_start(checkpoint(entries(*offsets), commits)) == expected

    @pytest.mark.parametrize(
        ("offsets", "commits", "last", "verdict"),
        [
            ((4, 5), (4, 5), 5, Verdict.NEW),
            ((4, 5), (4,), 5, Verdict.REPLAY),
            ((4, 5), (4,), 4, Verdict.NEW),
            ((4, 5), (4, 5), 4, Verdict.GAP),
            ((4, 5), (4, 5), 6, Verdict.CHANGED),
            ((), (), 0, Verdict.CHANGED),
        ],
    )
    def test_verdicts(self, offsets, commits, last, verdict):
        """The next batch is judged by the commit's own function, planned or not."""
        facts = checkpoint(entries(*offsets), commits)
        assert verdict_on(facts, published_to(last), next_start(facts)) is verdict

    def test_a_batch_that_would_be_skipped_by_number_alone_does_not_go_on(self):
        """Where ids alone are compared, a batch yet to be planned would be skipped whatever it gets."""
        facts = checkpoint(entries(4, 5), (4, 5))
        by_ids = published_to(7, guarantee="ids")
        assert verdict_on(facts, by_ids, next_start(facts)) is Verdict.CHANGED

    def test_an_accepted_batch_goes_on(self):
        """A batch that a person has let through is not refused any more."""
        facts = checkpoint(entries(4, 5), (4, 5))
        accepted = published_to(3, accepted=frozenset({6}))
        assert verdict_on(facts, accepted, next_start(facts)) is Verdict.ACCEPTED
