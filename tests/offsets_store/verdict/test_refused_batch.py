"""What a refusal tells people to do next: nothing that would lose rows, or write them twice."""

from __future__ import annotations

import pytest
from support.batches import make_batch

from pgonce.offsets_store.errors import OffsetsError
from pgonce.offsets_store.status.ends import starting_offsets_json
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Ledger, Remedies
from pgonce.offsets_store.verdict.refused_batch import refusal

NO_REMEDY = Remedies()


def help_for(verdict, ledger, batch, remedies=NO_REMEDY):
    """What the error says after "Help:"."""
    return refusal(verdict, ledger, batch, remedies).remedy


def test_the_other_topics_of_a_query_are_thought_of():
    """Where one topic was created again, the others go on at their stored offsets."""
    others = "If the query reads other topics as well, let startingOffsets name all of them: the others at their stored"
    assert others in help_for(Verdict.RECREATED, Ledger(), make_batch())
    assert others in help_for(Verdict.BACKWARD, Ledger(), make_batch())
    with pytest.raises(OffsetsError, match="PARTITIONS_GONE") as gone:
        starting_offsets_json({("t", 0): 70}, at_the_broker=[])
    assert others in gone.value.remedy
