"""What a refusal tells people to do next: nothing that would lose rows, or write them twice."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from support.batches import make_batch as made_batch
from support.batches import make_writer

from pgonce.offsets_store.errors import OffsetsError
from pgonce.offsets_store.status.ends import starting_offsets_json
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Ledger, Recorded, Remedies, Rival
from pgonce.offsets_store.verdict.refused_batch import EMPTY_STATE, refusal

END = {"0": {"t": {"0": 70}}}
ID, OLD_ID = (f"0f6c0000-0000-0000-0000-00000000000{n}" for n in (1, 0))
OLD = make_writer(OLD_ID, 6, END, checkpoint_location="/old")
NO_REMEDY, REPLACES = Remedies(), Remedies(replaces=OLD_ID)


def make_batch(batch_id=0, **changes):
    """A batch of a query whose id is one of Spark's."""
    return made_batch(batch_id, **{"query_id": ID, **changes})


def beside(writer):
    """The ledger, where another query feeds the sink."""
    return Ledger(rivals=(Rival(writer, "the same query name"),))


def last_batch(*, stateful):
    """The record of the old query's last batch."""
    return Recorded(6, "r0", UUID(int=1), None, END, None, stateful=stateful)


def help_for(verdict, ledger, batch, remedies=NO_REMEDY):
    """What the error says after "Help:"."""
    return refusal(verdict, ledger, batch, remedies).remedy


@pytest.mark.parametrize("remedies", [NO_REMEDY, REPLACES])
@pytest.mark.parametrize(("before", "now"), [(True, True), (True, False), (None, True)])
def test_a_lost_checkpoint_with_state_is_to_be_brought_back(before, now, remedies):
    """From the stored offsets on, sums of open windows would lack the rows that the lost state held."""
    ledger = beside(replace(OLD, last=last_batch(stateful=before)))
    said = help_for(Verdict.FOREIGN, ledger, make_batch(stateful=now), remedies)
    assert " /old: " in said
    assert "--truncate" in said
    assert "pgonce offsets" not in said


def test_a_query_that_was_judged_by_ids_may_keep_no_state():
    """Its records say that it keeps state because that was not checked."""
    ledger = beside(replace(OLD, guarantee="ids", last=last_batch(stateful=True)))
    assert f"`pgonce offsets {OLD_ID}` prints" in help_for(Verdict.FOREIGN, ledger, make_batch())


@pytest.mark.parametrize("verdict", [Verdict.CHANGED, Verdict.GAP, Verdict.DISJOINT])
def test_a_new_checkpoint_of_a_stateful_query_has_empty_state(verdict):
    """Where a new checkpoint at the stored offsets is a way out, a stateful query is told what it loses."""
    known = Ledger(writer=replace(OLD, retired_at=OLD.updated_at))
    for stateful in (True, False):
        said = help_for(verdict, known, make_batch(9, stateful=stateful))
        assert f"`pgonce offsets {ID}`" in said
        assert (EMPTY_STATE in said) == stateful


@pytest.mark.parametrize("verdict", [Verdict.CHANGED, Verdict.GAP, Verdict.DISJOINT])
def test_a_source_whose_offsets_no_start_takes_gets_its_checkpoint_written_again(verdict):
    """Only Kafka's startingOffsets can be set."""
    known = Ledger(writer=replace(OLD, end_offsets={"0": {"logOffset": 3}}))
    said = help_for(verdict, known, make_batch(9))
    assert "A lost checkpoint" in said
    assert "pgonce offsets" not in said


@pytest.mark.parametrize("verdict", [Verdict.CHANGED, Verdict.GAP, Verdict.DISJOINT])
def test_state_from_a_source_that_no_start_can_be_given_cannot_be_written_again(verdict):
    """A lost checkpoint is not written again with state, and `offsets` refuses such sources: neither is named."""
    known = Ledger(writer=replace(OLD, end_offsets={"0": 3000}))
    said = help_for(verdict, known, make_batch(9, stateful=True))
    assert f"`pgonce accept {ID} --batch 9 --reason ... --yes`" in said
    assert "A lost checkpoint" not in said
    assert "pgonce offsets" not in said


def test_batches_that_were_left_out_because_they_were_empty_are_accepted():
    """A function that returns before it calls the writer has lost nothing, and nothing can be recovered."""
    said = help_for(Verdict.GAP, Ledger(writer=OLD), make_batch(9))
    assert f"`pgonce accept {ID} --batch 9 " in said


def test_a_retired_query_goes_on_as_another_sink():
    """Its checkpoint is as good as before; but only the rows of later batches would come."""
    said = help_for(Verdict.FENCED, Ledger(writer=replace(OLD, retired_at=OLD.updated_at)), make_batch(9))
    assert "another sinkName" in said
    assert "no other query writes the next ones" in said
    assert said.endswith("and set adoptCheckpoint=9.")


def test_the_last_batch_of_a_retired_query_is_not_written_again():
    """Its rows are there, whichever way the query goes on: under the other name that it was told, too."""
    retired = replace(OLD, query_id=ID, retired_at=OLD.updated_at)
    said = help_for(Verdict.FENCED, Ledger(writer=retired), make_batch(6))
    assert said.endswith("and set adoptCheckpoint=7.")
    own = Ledger(rivals=(Rival(retired, "the same query", other_sink="public.events"),))
    said = refusal(Verdict.UNKNOWN, own, make_batch(6), NO_REMEDY)
    assert "which was retired or forgotten since" in said.what
    assert "set adoptCheckpoint=7" in said.remedy
    assert "sinkName" not in said.remedy
    # An older copy would publish all that is between once more.
    assert "adoptCheckpoint" not in help_for(Verdict.FENCED, Ledger(writer=retired), make_batch(4))


def test_a_batch_to_adopt_that_is_another_one_is_named():
    """Otherwise the error would be the same as without the option."""
    said = refusal(Verdict.UNKNOWN, Ledger(), make_batch(4), Remedies(adopt_checkpoint=7)).what
    assert "adoptCheckpoint=7 is set" in said


def test_a_partition_that_was_added_is_named():
    """If its first rows are gone, the old query is retired, because no start can continue it."""
    batch = make_batch(start={"0": {"t": {"0": 70, "1": 2}}})
    error = refusal(Verdict.FOREIGN, beside(OLD), batch, REPLACES)
    assert " t-1," in error.what
    assert f"`pgonce offsets {OLD_ID} --bootstrap-servers ...` prints" in error.remedy
    assert f"`pgonce retire {OLD_ID} --yes`" in error.remedy


def test_the_other_topics_of_a_query_are_thought_of():
    """Where one topic was created again, the others go on at their stored offsets."""
    others = "If the query reads other topics as well, "
    assert others in help_for(Verdict.RECREATED, Ledger(), make_batch(topic_ids={}))
    assert others in help_for(Verdict.BACKWARD, Ledger(), make_batch())
    with pytest.raises(OffsetsError, match="PARTITIONS_GONE") as gone:
        starting_offsets_json({("t", 0): 70}, at_the_broker=[])
    assert others in gone.value.remedy
