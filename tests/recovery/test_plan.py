"""
Which files make a checkpoint agree with the ledger, from facts alone: each rule, and every place to be cut short.

Covers: pgonce.recovery.plan, pgonce.recovery.state_files, pgonce.recovery.stateful_query,
pgonce.recovery.stopped_query, pgonce.recovery.target.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from support.stopped_query import COMMIT, checkpoint, entries, entry, kafka, published_to, record, sink

from pgonce.offsets_store.errors import CheckpointError, RecoveryError, UnknownQueryError
from pgonce.offsets_store.offsets import tells_which_rows
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.refused_batch import ANOTHER_TOPIC
from pgonce.recovery.next_start import goes_on, next_start, verdict_on
from pgonce.recovery.plan import plan_recovery
from pgonce.recovery.state_files import StateFile
from pgonce.recovery.stateful_query import last_batch
from pgonce.recovery.stopped_query import Change, SideLog
from pgonce.recovery.target import FIRST_COMMIT

FILES = {"0": SideLog(frozenset(range(4)), frozenset())}


def files(number):
    """The entry of a query that reads files."""
    return entry(number, {"logOffset": number})


def stands(facts):
    """Where a checkpoint stands: its entries with their texts, and its commits."""
    return {number: found.text for number, found in facts.offsets.items()}, sorted(facts.commits)


def refused(code, facts, sinks):
    """The refusal of a plan, which must have this code."""
    with pytest.raises(RecoveryError) as error:
        plan_recovery(facts, sinks)
    assert error.value.code == code
    return error.value


UNFINISHED = (
    "offsets/..0.3f0c9b1e-6f2a-4b57-9d0c-0a1b2c3d4e5f.tmp.crc",
    "offsets/.0.3f0c9b1e-6f2a-4b57-9d0c-0a1b2c3d4e5f.tmp",
)


class TestBeforeTheFirstBatch:
    def test_a_first_entry_half_written_is_taken_away(self):
        """Where no entry is there and nothing was published, what a killed driver has begun goes, checksums too."""
        facts = checkpoint({}, checksums=frozenset({"offsets/.0.crc"}), unfinished=frozenset(UNFINISHED))
        plan = plan_recovery(facts, [])
        assert set(plan.changes) == {Change(name, None) for name in (*UNFINISHED, "offsets/.0.crc")}
        assert plan_recovery(facts.after(plan.changes), []).changes == ()

    def test_it_stays_beside_an_entry(self):
        """Once the first entry is there, Spark passes over it, and so does the plan."""
        assert plan_recovery(checkpoint(entries(0), unfinished=frozenset(UNFINISHED)), []).changes == ()

    def test_it_stays_where_there_is_a_past(self):
        """Commits, or a record of the query, say that the first batch is over; state that it has begun."""
        gone = frozenset(UNFINISHED)
        refused("UNKNOWN", checkpoint({}, (0,), unfinished=gone), [])
        retired = published_to(1, retired_at=datetime(2026, 1, 1, tzinfo=timezone.utc))
        refused("UNKNOWN", checkpoint({}, unfinished=gone), [retired])
        refused("RECOVERY_STATEFUL", checkpoint({}, unfinished=gone, is_stateful=True), [published_to(1)])
        refused("RECOVERY_UNPROVEN", checkpoint({}, unfinished=gone, is_stateful=True), [])


class TestNothingToDo:
    @pytest.mark.parametrize(
        ("offsets", "commits", "last"), [((4, 5), (4, 5), 5), ((4, 5), (4,), 5), ((4, 5), (4,), 4), ((0,), (), 0)]
    )
    def test_a_checkpoint_that_agrees_needs_no_change(self, offsets, commits, last):
        """A finished batch, a replay and a planned batch that follows need nothing; a stateful query neither."""
        for stateful in (False, True):
            plan = plan_recovery(checkpoint(entries(*offsets), commits, is_stateful=stateful), [published_to(last)])
            assert plan.changes == ()

    @pytest.mark.parametrize("offsets", [(), (0,)])
    def test_before_the_first_batch(self, offsets):
        """A query that was killed before its first batch is in order, though the ledger does not know it."""
        assert plan_recovery(checkpoint(entries(*offsets)), []).changes == ()

    def test_replaced_and_retired_sinks_do_not_count(self):
        """Where another sink stands matters only while it may publish."""
        gone = [
            published_to(1, replaced_by="another query"),
            published_to(2, retired_at=datetime(2026, 1, 1, tzinfo=timezone.utc)),
        ]
        assert plan_recovery(checkpoint(entries(4, 5), (4, 5)), [*gone, published_to(5)]).changes == ()

    def test_orphaned_checksums_are_taken_away(self):
        """A checksum without its file would break Spark's next write."""
        orphan = "offsets/.6.crc"
        facts = checkpoint(entries(4, 5), (4, 5), checksums=frozenset({orphan, "offsets/.5.crc"}))
        assert plan_recovery(facts, [published_to(5)]).changes == (Change(orphan, None),)


class TestMayDouble:
    @pytest.mark.parametrize(("commits", "may"), [((4, 5, 6), True), ((4, 5), False)])
    def test_where_spark_has_done_what_the_ledger_lacks(self, commits, may):
        """Batches that were only planned have written nothing anywhere."""
        plan = plan_recovery(checkpoint(entries(4, 5, 6, 7), commits), [published_to(5)])
        assert (plan.stands_at, plan.may_double) == (5, may)

    @pytest.mark.parametrize(("commits", "may"), [((4, 5), False), ((4, 5, 6), True), ((4, 5, 6, 7), True)])
    def test_a_batch_that_spark_has_done_may_double_what_one_sink_lacks(self, commits, may):
        """If Spark has done a batch that one sink lacks, something else may have written it there."""
        behind = published_to(5, writer_id=2, sink_name="audit")
        plan = plan_recovery(checkpoint(entries(4, 5, 6, 7), commits), [published_to(6), behind])
        assert (plan.stands_at, plan.may_double) == (6, may)

    @pytest.mark.parametrize("planned", [None, 7])
    def test_forward_over_other_batches(self, planned):
        """Spark has done batches of these numbers over other ranges: their rows are none of the ledger's."""
        another = {} if planned is None else {7: entry(7, kafka(150), planned=planned)}
        facts = checkpoint({**entries(5, 6, 7), **another}, (5, 6, 7))
        plan = plan_recovery(facts, [published_to(9)])
        assert (plan.stands_at, plan.may_double) == (9, planned is not None)

    @pytest.mark.parametrize(("commits", "may"), [((3, 4), False), ((3, 4, 5, 6), True)])
    def test_positions_drop_stored_rows_but_not_those_of_a_function(self, commits, may):
        """Positions drop what is stored, but not what another function has written."""
        records = [record(4, entry(4), positions={"0": kafka(40)}), record(5, None, positions={"0": kafka(42)})]
        facts = checkpoint(entries(3, 4, 5, 6), commits)
        plan = plan_recovery(facts, [sink(records, end_offsets={"0": kafka(42)})])
        assert (plan.stands_at, plan.may_double) == (4, may)


class TestForward:
    def test_a_text_that_differs_is_replaced_with_its_checksum(self):
        """An entry that was planned again gives way to the recorded one; its checksum goes first."""
        facts = checkpoint(
            {4: entry(4), 5: entry(5, kafka(55), planned=1)}, (4,), checksums=frozenset({"offsets/.5.crc"})
        )
        plan = plan_recovery(facts, [published_to(5)])
        assert plan.changes == (
            Change("offsets/.5.crc", None),
            Change("offsets/5", entry(5)),
            Change("commits/5", COMMIT),
        )

    def test_a_checkpoint_without_logs_is_written_from_the_ledger(self):
        """A checkpoint that has lost its logs is written from the ledger; there is no commit to copy."""
        plan = plan_recovery(checkpoint({}), [published_to(3)])
        assert plan.changes == (
            Change("offsets/2", entry(2)),
            Change("offsets/3", entry(3)),
            Change("commits/3", FIRST_COMMIT),
        )

    def test_without_logs_two_sinks_may_be_one_batch_apart_and_no_further(self):
        """One batch apart, the batch is left to be run again; further apart it is refused."""
        audit = published_to(4, writer_id=2, sink_name="audit")
        plan = plan_recovery(checkpoint({}), [published_to(5), audit])
        assert [name for name, _ in plan.changes] == ["offsets/4", "offsets/5"]
        third = published_to(2, writer_id=3, sink_name="third")
        refused("RECOVERY_APART", checkpoint({}), [published_to(5), audit, third])

    @pytest.mark.parametrize(
        ("code", "known"),
        [
            ("RECOVERY_STATEFUL", published_to(2, stateful=True)),
            ("RECOVERY_STATEFUL", published_to(2, stateful=None)),
            ("RECOVERY_UNPROVEN", published_to(2, guarantee="ids", stateful=None)),
            ("RECOVERY_UNPROVEN", published_to(2, {n: entry(n, {"logOffset": n}) for n in range(3)})),
            ("RECOVERY_UNPROVEN", published_to(2, {2: entry(2) + "\n-"})),
            ("RECOVERY_UNPROVEN", sink([record(2, None, positions={"0": kafka(30)}, end={"0": kafka(30)})])),
        ],
        ids=["state", "perhaps state", "ids alone", "files", "a source that has not begun", "no recorded entry"],
    )
    def test_what_the_ledger_alone_cannot_prove_is_refused(self, code, known):
        """Without logs, everything must be recorded: no entry is made up."""
        refused(code, checkpoint({}), [known])

    def test_the_commit_keeps_its_version(self):
        """Spark compares the version of its commit log with the one that it would write."""
        facts = checkpoint(entries(1, 2), (1, 2), commit='v2\n{"nextBatchWatermarkMs":0}')
        assert plan_recovery(facts, [published_to(4)]).changes[-1].text == 'v2\n{"nextBatchWatermarkMs":0}'

    def test_an_entry_before_that_is_not_recorded(self):
        """The entry before a batch that is done is only read: the one that there is does."""
        adopted = sink([record(9, entry(9))])
        plan = plan_recovery(checkpoint(entries(0, 1, 6), (0, 1, 6)), [adopted])
        assert plan.changes[0] == Change("offsets/8", entry(6))


class TestBack:
    def test_a_planned_batch_that_does_not_follow(self):
        """A batch planned after another predecessor is planned again."""
        facts = checkpoint({4: entry(4, planned=1), 5: entry(5)}, (4,))
        offsets, commits = stands(facts.after(plan_recovery(facts, [published_to(4)]).changes))
        assert (offsets, commits) == (entries(3, 4), [4])

    @pytest.mark.parametrize(
        "offset",
        [
            {"offset": 50, "timestamp": 5000},
            {"sourceVersion": 1, "reservoirId": "a", "reservoirVersion": 4, "index": 0, "isStartingVersion": True},
        ],
    )
    def test_other_sources_whose_offsets_say_which_rows(self, offset):
        """rate-micro-batch and Delta are moved as Kafka is."""
        texts = {number: entry(number, offset) for number in range(3)}
        plan = plan_recovery(checkpoint(texts, (0, 1, 2)), [published_to(1, texts)])
        assert plan.stands_at == 1

    @pytest.mark.parametrize("offset", [3, "text", {"shard": {"a": 1}}, {"logOffset": True}, [1]])
    def test_unknown_sources_are_refused(self, offset):
        """What does not say which rows come next is moved nowhere."""
        assert not tells_which_rows(offset)
        texts = {number: entry(number, offset) for number in range(4)}
        refused("RECOVERY_UNPROVEN", checkpoint(texts, range(4)), [published_to(1, texts)])


def state(version, name="0/0/{}.snapshot", *, is_named=False):
    """A file of state."""
    is_whole = name.endswith((".snapshot", ".zip", ".crc"))
    return StateFile(f"state/{name.format(version)}", version, is_whole, is_named)


def keeps_state(offsets, commits, **facts):
    """The checkpoint of a stateful query, in whose state nothing is younger than its commits."""
    return checkpoint(offsets, commits, **{"is_stateful": True, "state_since": frozenset(), **facts})


PLANNED_AGAIN = {4: entry(4), 5: entry(5, kafka(87), planned=1)}
# Besides the last batch, which is 5.
MORE_IS_WRONG = {
    "the commit before is gone": (entries(3, 4), (3,)),
    "the commit before is gone, and it was planned again": ({3: entry(3), **PLANNED_AGAIN}, (3,)),
    "it is committed": (PLANNED_AGAIN, (4, 5)),
    "the entry before is another": ({4: entry(4, planned=1)}, (4,)),
    "both are others": ({4: entry(4, planned=1), 5: entry(5, planned=1)}, (4,)),
    "the entry before is gone": ({3: entry(3), 5: entry(5, planned=1)}, (4,)),
    "an entry after it": ({**PLANNED_AGAIN, 6: entry(6)}, (4,)),
    "no entry": ({}, (4,)),
    "no commit": (PLANNED_AGAIN, ()),
}


class TestLastBatchOfAStatefulQuery:
    @pytest.mark.parametrize("offsets", [entries(4), PLANNED_AGAIN])
    def test_its_entry_is_put_back(self, offsets):
        """Planned again or not yet, the last batch gets its recorded entry and nothing else changes: it is a replay."""
        facts = keeps_state(offsets, (3, 4), checksums=frozenset({"offsets/.5.crc"}) if 5 in offsets else frozenset())
        plan = plan_recovery(facts, [published_to(5, stateful=True)])
        assert [change for change in plan.changes if change.name != "offsets/.5.crc"] == [Change("offsets/5", entry(5))]
        repaired = facts.after(plan.changes)
        assert stands(repaired) == (entries(4, 5), [3, 4])
        assert verdict_on(repaired, published_to(5), next_start(repaired)) is Verdict.REPLAY
        assert plan_recovery(repaired, [published_to(5)]).changes == ()

    def test_state_that_was_written_whole_is_taken_aside(self):
        """Of the version that the batch makes again, snapshots go before the entry comes; changes are overwritten."""
        crc, zipped, snapshot = state(6, "0/0/.{}.zip.crc"), state(6, "0/0/{}.zip"), state(6, "0/1/left/{}.snapshot")
        kept = state(6, "0/1/{}.delta"), state(6, "0/1/{}_a-b.zip", is_named=True)
        facts = keeps_state(PLANNED_AGAIN, (4,), state_since=frozenset({crc, zipped, snapshot, *kept}))
        plan = plan_recovery(facts, [published_to(5)])
        assert plan.changes == (
            Change(crc.name, None),
            Change(zipped.name, None),
            Change(snapshot.name, None),
            Change("offsets/5", entry(5)),
        )
        assert facts.after(plan.changes).state_since == set(kept)

    @pytest.mark.parametrize(("offsets", "commits"), MORE_IS_WRONG.values(), ids=MORE_IS_WRONG)
    def test_nothing_else_may_be_wrong(self, offsets, commits):
        """Any other file that is missing, or of another text, may mean another state."""
        facts = keeps_state(offsets, commits)
        assert last_batch(facts, [published_to(5)]) is None
        refused("RECOVERY_STATEFUL", facts, [published_to(5)])

    def test_the_batch_before_runs_again_first(self):
        """While its commit is missing, a start repairs that; after it, recover has its turn."""
        error = refused("RECOVERY_STATEFUL", keeps_state(entries(3, 4), (3,)), [published_to(5)])
        assert "Start the query once more" in error.remedy
        for offsets, commits in [(entries(3, 4), (2,)), ({4: entry(4)}, (3,)), ({3: entry(3), **PLANNED_AGAIN}, (3,))]:
            error = refused("RECOVERY_STATEFUL", keeps_state(offsets, commits), [published_to(5)])
            assert "Start the query" not in error.remedy

    @pytest.mark.parametrize("last", [3, 4, 6])
    def test_every_sink_must_stand_there(self, last):
        """A sink that is a batch behind would get rows that were made from another state; one ahead has others."""
        other = published_to(last, writer_id=2, sink_name="audit")
        refused("RECOVERY_STATEFUL", keeps_state(PLANNED_AGAIN, (4,)), [published_to(5), other])

    def test_sinks_that_are_gone_do_not_count(self):
        """They get nothing any more; but without any other there is nobody to prove the batch."""
        gone = published_to(3, writer_id=2, sink_name="audit", retired_at=datetime(2026, 1, 1, tzinfo=timezone.utc))
        replaced = published_to(5, replaced_by="another query")
        assert plan_recovery(keeps_state(PLANNED_AGAIN, (4,)), [published_to(5), gone]).stands_at == 5
        refused("UNKNOWN", keeps_state(PLANNED_AGAIN, (4,)), [gone, replaced])

    def test_all_must_have_recorded_the_same_entries(self):
        """Of both batches; numbers and missing texts prove nothing, positions neither."""
        for number, code in [(5, "RECOVERY_UNPROVEN"), (4, "RECOVERY_STATEFUL")]:
            other = published_to(5, {number: entry(number, planned=7)}, writer_id=2, sink_name="audit")
            refused(code, keeps_state(PLANNED_AGAIN, (4,)), [published_to(5), other])
        for records in ([record(4, entry(4)), record(5, None, end={"0": kafka(60)})], [record(5, entry(5))]):
            with pytest.raises(RecoveryError):
                plan_recovery(keeps_state(PLANNED_AGAIN, (4,)), [sink(records)])
        by_position = sink([record(4, entry(4)), record(5, None, positions={"0": kafka(60)})], writer_id=2)
        refused("RECOVERY_UNPROVEN", keeps_state(PLANNED_AGAIN, (4,)), [published_to(5), by_position])

    def test_state_that_went_on(self):
        """Versions that only later batches can have made mean that files were taken away; unseen ones may be there."""
        for since in (frozenset({state(7, "0/0/{}.delta")}), frozenset({state(6), state(9)}), None):
            refused("RECOVERY_STATEFUL", keeps_state(PLANNED_AGAIN, (4,), state_since=since), [published_to(5)])

    def test_a_query_whose_state_is_lost(self):
        """Where the ledger knows of state and the checkpoint has none, there is nothing to make it from."""
        refused("RECOVERY_STATEFUL", checkpoint(PLANNED_AGAIN, (4,)), [published_to(5, stateful=True)])

    def test_the_first_batch_has_no_recorded_beginning(self):
        """Nothing is recorded of where it began."""
        refused("RECOVERY_STATEFUL", keeps_state({0: entry(0, kafka(3), planned=1)}, ()), [published_to(0)])

    def test_a_planning_that_goes_back_shows_another_topic(self):
        """A planning that goes back behind the batch before shows that the rows are others now."""
        facts = keeps_state({4: entry(4), 5: entry(5, kafka(7), planned=1)}, (4,))
        assert ANOTHER_TOPIC in refused("RECOVERY_UNPROVEN", facts, [published_to(5)]).remedy

    @pytest.mark.parametrize("offset", [{"logOffset": 5}, 3, {"shard": {"a": 1}}])
    def test_sources_whose_offsets_do_not_say_which_rows(self, offset):
        """A list of files may have been recreated under its number, and of others nobody knows."""
        texts = {4: entry(4, offset), 5: entry(5, offset)}
        for offsets in ({4: texts[4]}, {4: texts[4], 5: entry(5, offset, planned=1)}):
            facts = keeps_state(offsets, (4,), side_logs={"0": SideLog(frozenset(range(9)), frozenset())})
            refused("RECOVERY_UNPROVEN", facts, [published_to(5, texts)])


class TestLastBatchThatTheLedgerLacks:
    """A failover lost it: Spark runs it again, as after a kill before its commit, whatever the query keeps."""

    def test_a_stateful_query_runs_it_again_from_the_state_before(self):
        """Its state after the batch before is there, and its entry."""
        facts = keeps_state(entries(2, 3, 4), (2, 3, 4), checksums=frozenset({"commits/.4.crc"}))
        plan = plan_recovery(facts, [published_to(3, stateful=True)])
        assert plan.changes == (Change("commits/.4.crc", None), Change("commits/4", None))
        assert (plan.stands_at, plan.may_double) == (4, True)
        repaired = facts.after(plan.changes)
        assert verdict_on(repaired, published_to(3), next_start(repaired)) is Verdict.NEW

    @pytest.mark.parametrize(
        ("offsets", "commits", "last"),
        [
            (entries(2, 3, 4), (2, 3, 4), 2),
            (entries(2, 3, 4), (2, 4), 3),
            ({**entries(2, 4), 3: entry(3, planned=1)}, (2, 3, 4), 3),
        ],
        ids=["two are missing", "the commit before is gone", "the entry before is another"],
    )
    def test_it_is_refused_where_nothing_shows_that_it_would_follow(self, offsets, commits, last):
        """Then nothing shows that the batch would follow, or Spark would not run it."""
        refused("RECOVERY_STATEFUL", keeps_state(offsets, commits), [published_to(last, stateful=True)])

    def test_a_sink_that_has_it_skips_it(self):
        """One of two sinks may have published the batch before the database of the other went back."""
        facts = keeps_state(entries(2, 3, 4), (2, 3, 4))
        other = published_to(4, writer_id=2, sink_name="public.others", stateful=True)
        plan = plan_recovery(facts, [published_to(3, stateful=True), other])
        assert plan.changes == (Change("commits/4", None),)


class TestDamagedEntries:
    """Power was lost, and a file is empty or cut short."""

    def test_the_newest_entry_was_not_published(self):
        """It goes, with its checksum, and Spark plans the batch."""
        facts = checkpoint(
            entries(2, 3), (2, 3), checksums=frozenset({"offsets/.4.crc"}), damaged=frozenset({"offsets/4"})
        )
        plan = plan_recovery(facts, [published_to(3)])
        assert plan.changes == (Change("offsets/.4.crc", None), Change("offsets/4", None))
        assert facts.after(plan.changes).damaged == frozenset()

    def test_the_recorded_text_replaces_a_damaged_published_entry(self):
        """Its recorded text takes its place, and it is done."""
        facts = checkpoint(entries(2, 3), (2, 3), damaged=frozenset({"offsets/4"}))
        plan = plan_recovery(facts, [published_to(4)])
        assert plan.changes[0] == Change("offsets/4", None)
        assert Change("offsets/4", entry(4)) in plan.changes
        assert stands(facts.after(plan.changes))[0] == entries(2, 3, 4)

    def test_a_batch_with_a_damaged_commit_entry_runs_again(self):
        """The batch runs again, as a proven replay."""
        facts = keeps_state(entries(3, 4), (3,), damaged=frozenset({"commits/4"}))
        assert plan_recovery(facts, [published_to(4, stateful=True)]).changes == (Change("commits/4", None),)

    def test_a_damaged_old_entry_is_removed_all_the_same(self):
        """Spark never reads it; it goes all the same."""
        facts = checkpoint(entries(3, 4), (3, 4), damaged=frozenset({"offsets/0"}))
        assert plan_recovery(facts, [published_to(4)]).changes == (Change("offsets/0", None),)

    def test_of_a_query_that_nobody_knows(self):
        """Only its first entry may go: of later batches, nobody knows whether they are written."""
        facts = checkpoint({}, damaged=frozenset({"offsets/0"}))
        assert plan_recovery(facts, []).changes == (Change("offsets/0", None),)
        for damaged in ({"offsets/0", "commits/0"}, {"offsets/5", "commits/4"}):
            refused("UNKNOWN", checkpoint({}, damaged=frozenset(damaged)), [])

    def test_a_batch_that_spark_has_done(self):
        """The ledger lacks it: its commit goes too, and that is said."""
        facts = checkpoint(entries(5, 6), (5, 6, 7), damaged=frozenset({"offsets/7"}))
        plan = plan_recovery(facts, [published_to(6)])
        assert plan.may_double
        repaired = facts.after(plan.changes)
        assert stands(repaired) == (entries(5, 6), [5, 6])
        refused("RECOVERY_STATEFUL", replace(facts, is_stateful=True), [published_to(6, stateful=True)])

    def test_the_state_of_a_batch_that_is_planned_again(self):
        """What it has written whole would be read at a later start."""
        zipped = state(8, "0/0/{}.zip")
        damaged = frozenset({"offsets/7"})
        facts = keeps_state(entries(5, 6), (5, 6), damaged=damaged, state_since=frozenset({zipped}))
        plan = plan_recovery(facts, [published_to(6, stateful=True)])
        assert plan.changes == (Change(zipped.name, None), Change("offsets/7", None))


class TestFiles:
    def test_forward_where_the_list_reaches(self):
        """Files are moved forward over a list that holds the entry, single or compacted."""
        texts = {number: files(number) for number in range(4)}
        for log in (FILES["0"], SideLog(frozenset(), frozenset({9}))):
            facts = checkpoint({0: texts[0], 1: texts[1]}, (0, 1), side_logs={"0": log})
            assert plan_recovery(facts, [published_to(3, texts)]).stands_at == 3

    def test_not_past_the_end_of_the_list(self):
        """What the list does not hold cannot be read again."""
        texts = {number: files(number) for number in range(6)}
        facts = checkpoint({0: texts[0], 1: texts[1]}, (0, 1), side_logs=FILES)
        assert "sources/0" in refused("RECOVERY_UNPROVEN", facts, [published_to(5, texts)]).what

    def test_only_the_last_batch_of_a_file_source_can_run_again(self):
        """Files that the list holds count as read; only the last batch can be run again, as it was planned."""
        texts = {number: files(number) for number in range(4)}
        facts = checkpoint(texts, range(4), side_logs=FILES)
        refused("RECOVERY_UNPROVEN", facts, [published_to(1, texts)])
        assert plan_recovery(facts, [published_to(2, texts)]).changes == (Change("commits/3", None),)

    def test_not_over_the_list_of_another_past(self):
        """An older copy that was advanced elsewhere has a list of its own."""
        texts = {number: files(number) for number in range(4)}
        facts = checkpoint({1: texts[1], 2: entry(2, {"logOffset": 2}, planned=1)}, (1, 2), side_logs=FILES)
        refused("RECOVERY_UNPROVEN", facts, [published_to(3, texts)])


class TestSeveralSinks:
    def two(self, one, other):
        """Two sinks of one query."""
        return [published_to(one), published_to(other, writer_id=2, sink_name="audit")]

    def test_sinks_two_batches_apart_are_refused_and_retire_is_named(self):
        """Two batches apart nothing can be run again for one alone: retire is named."""
        error = refused("RECOVERY_APART", checkpoint(entries(4, 5), (4, 5)), self.two(5, 3))
        assert "pgonce retire" in error.remedy
        assert "audit at batch 3" in error.what

    def test_sinks_that_recorded_different_texts_have_no_common_place(self):
        other = published_to(4, {4: entry(4, planned=1)}, writer_id=2, sink_name="audit")
        refused("RECOVERY_UNPROVEN", checkpoint(entries(1), (1,)), [published_to(4), other])

    def test_the_entry_between_must_be_recorded(self):
        """For the sink that is behind, only its own recorded text proves that the batch follows."""
        behind = sink([record(4, None, end={"0": kafka(50)})], writer_id=2, sink_name="audit")
        refused("RECOVERY_UNPROVEN", checkpoint(entries(1), (1,)), [published_to(5), behind])


class TestSparse:
    @pytest.mark.parametrize("commits", [(0, 1, 6), (0, 1)])
    def test_the_entry_before_is_put_in(self, commits):
        """Before a synchronous start the entry before the newest is written, from the record."""
        facts = checkpoint(entries(0, 1, 6), commits)
        plan = plan_recovery(facts, [published_to(6)])
        assert plan.changes == (Change("offsets/5", entry(5)),)

    def test_from_the_entry_before_where_none_is_recorded(self):
        """A batch that is skipped by its own text may begin anywhere."""
        facts = checkpoint(entries(0, 1, 6), (0, 1))
        plan = plan_recovery(facts, [sink([record(6, entry(6))])])
        assert plan.changes == (Change("offsets/5", entry(1)),)


class TestPositions:
    def dropping(self, *records, **facts):
        """A sink whose rows carry their positions."""
        return sink(records, **facts)

    def test_a_start_at_or_below_the_stored_end_is_left_alone(self):
        """The ledger may be far ahead: what runs again is dropped by its positions."""
        last = record(9, None, positions={"0": kafka(95)}, end={"0": kafka(100)})
        facts = checkpoint(entries(5, 6), (5, 6))
        assert plan_recovery(facts, [self.dropping(last)]).changes == ()

    def test_rows_that_were_filtered_out_leave_nothing_to_repair(self):
        """A start past the last position is proven by the recorded text, or by the recorded end of the range."""
        for last in (
            record(6, entry(6), positions={"0": kafka(65)}),
            record(6, None, positions={"0": kafka(65)}, end={"0": kafka(70)}),
        ):
            assert plan_recovery(checkpoint(entries(5, 6), (5, 6)), [self.dropping(last)]).changes == ()

    def test_back_to_the_newest_proven_entry(self):
        """A start past the stored end without proof is moved back to an entry that proves itself."""
        records = [record(4, entry(4), positions={"0": kafka(40)}), record(5, None, positions={"0": kafka(42)})]
        facts = checkpoint(entries(3, 4, 5, 6), (3, 4, 5, 6))
        plan = plan_recovery(facts, [self.dropping(*records, end_offsets={"0": kafka(42)})])
        repaired = facts.after(plan.changes)
        assert stands(repaired) == (entries(3, 4), [3, 4])
        assert next_start(repaired).batch_id == 5

    def test_back_to_an_entry_at_or_below_the_stored_end(self):
        """An entry that ends below what is stored leaves nothing out, recorded or not."""
        facts = checkpoint(entries(3, 4, 5, 6), (3, 4, 5, 6))
        last = record(5, None, positions={"0": kafka(42)})
        plan = plan_recovery(facts, [self.dropping(last, end_offsets={"0": kafka(42)})])
        assert stands(facts.after(plan.changes)) == ({2: entry(3), 3: entry(3)}, [3])

    def test_batch_0_again_is_the_last_resort(self):
        """Where no entry proves itself, the query begins where it began."""
        facts = checkpoint(entries(0, 1), (0, 1))
        last = record(1, None, positions={"0": kafka(4)})
        plan = plan_recovery(facts, [self.dropping(last, end_offsets={"0": kafka(4)})])
        repaired = facts.after(plan.changes)
        assert stands(repaired) == (entries(0), [])

    def test_positions_without_a_known_beginning_prove_nothing(self):
        """Without the beginning nothing is left."""
        facts = checkpoint(entries(6, 7), (6, 7), initial={})
        last = record(1, None, positions={"0": kafka(4)})
        refused("RECOVERY_UNPROVEN", facts, [self.dropping(last, end_offsets={"0": kafka(4)})])

    def test_beside_a_sink_without_positions(self):
        """The sink that needs the exact batch decides, if that leaves nothing out of the other."""
        facts = checkpoint(entries(1), (1,))
        exact = published_to(5, writer_id=2, sink_name="audit")
        ahead = self.dropping(record(9, None, positions={"0": kafka(99)}))
        assert plan_recovery(facts, [ahead, exact]).stands_at == 5
        behind = self.dropping(record(2, None, positions={"0": kafka(25)}), end_offsets={"0": kafka(25)})
        refused("RECOVERY_UNPROVEN", facts, [behind, exact])


def continuous(number):
    """An entry as a continuous query writes it: without its metadata."""
    version, _, offsets = entry(number).split("\n")
    return f"{version}\n\n{offsets}"


class TestContinuous:
    @pytest.mark.parametrize("sinks", [[], [published_to(5, {5: continuous(5)})]], ids=["unknown", "known"])
    def test_no_micro_batch_goes_on_from_its_entry(self, sinks):
        """The page says how the query goes on; but where the ledger is before the entry, the checkpoint goes back."""
        facts = checkpoint({4: entry(4), 5: continuous(5)}, (4, 5))
        assert "ran continuously" in refused("RECOVERY_UNPROVEN", facts, sinks).remedy
        assert plan_recovery(facts, [published_to(4)]).stands_at == 4


class TestRefused:
    def test_a_checkpoint_with_a_past_that_the_ledger_lacks_is_left_alone(self):
        unknown = refused("UNKNOWN", checkpoint(entries(0, 1), (0, 1)), [])
        # One that is to be adopted starts all the same.
        assert isinstance(unknown, UnknownQueryError)
        retired = published_to(1, retired_at=datetime(2026, 1, 1, tzinfo=timezone.utc))
        refused("UNKNOWN", checkpoint(entries(0, 1), (0, 1)), [retired])

    @pytest.mark.parametrize(("in_files", "in_ledger"), [(True, None), (False, True)])
    def test_state_fits_one_batch_only_whoever_knows_of_it(self, in_files, in_ledger):
        """State fits one batch only, even if several sinks know of it."""
        facts = checkpoint(entries(4, 5), (4, 5), is_stateful=in_files)
        refused("RECOVERY_STATEFUL", facts, [published_to(3, stateful=in_ledger)])

    def test_a_batch_that_is_known_by_its_number_alone_proves_nothing(self):
        refused("RECOVERY_UNPROVEN", checkpoint(entries(4, 5), (4, 5)), [published_to(3, guarantee="ids")])

    def test_ids_alone_beside_an_entry_that_lacks(self):
        """Batch 6 would be run again from where batch 3 ended, and its id alone would let it through."""
        by_ids = sink([record(number, None) for number in range(6)], guarantee="ids", stateful=True)
        refused("RECOVERY_UNPROVEN", checkpoint(entries(3, 6), (3,)), [by_ids])

    def test_a_text_that_is_not_recorded(self):
        """Without the recorded text of the last batch there is nothing to write."""
        last = sink([record(7, None, end={"0": kafka(80)})])
        refused("RECOVERY_UNPROVEN", checkpoint(entries(4, 5), (4, 5)), [last])

    def test_a_range_that_goes_back_shows_another_topic(self):
        """A range that goes back is not repaired by planning it once more."""
        facts = checkpoint({4: entry(4), 5: entry(5, kafka(7))}, (4,))
        assert ANOTHER_TOPIC in refused("RECOVERY_UNPROVEN", facts, [published_to(4)]).remedy

    def test_a_checkpoint_without_metadata_belongs_to_no_query(self):
        """Nobody knows whose checkpoint it is."""
        with pytest.raises(CheckpointError, match="CHECKPOINT_NOT_FOUND"):
            plan_recovery(checkpoint(entries(4, 5), query_id=None), [published_to(5)])


CHECKSUMS = frozenset(f"{folder}/.{number}.crc" for folder in ("offsets", "commits") for number in range(12))
CUT_SHORT = {
    "forward": (checkpoint(entries(0, 1, 6), (0, 1, 6), checksums=CHECKSUMS), [published_to(9)]),
    "forward over other texts": (
        checkpoint({n: entry(n, planned=1) for n in range(10)}, range(10), checksums=CHECKSUMS),
        [published_to(9)],
    ),
    "back": (checkpoint(entries(*range(9)), range(9), checksums=CHECKSUMS), [published_to(4)]),
    "back over other texts": (
        checkpoint({n: entry(n, planned=1) for n in range(9)}, range(8), checksums=CHECKSUMS),
        [published_to(4)],
    ),
    "apart": (
        checkpoint(entries(*range(9)), range(9), checksums=CHECKSUMS),
        [published_to(4), published_to(3, writer_id=2, sink_name="audit")],
    ),
    "stateful": (
        keeps_state(
            PLANNED_AGAIN, (4,), checksums=CHECKSUMS, state_since=frozenset({state(6), state(6, "0/1/{}.snapshot")})
        ),
        [published_to(5)],
    ),
    "positions": (
        checkpoint(entries(*range(9)), range(9), checksums=CHECKSUMS),
        [sink([record(5, None, positions={"0": kafka(42)})], end_offsets={"0": kafka(42)})],
    ),
}


@pytest.mark.parametrize("case", CUT_SHORT)
def test_cut_short_anywhere_a_second_plan_repairs_it(case):
    """After any beginning of the changes, a second plan comes to a checkpoint from which every sink goes on."""
    facts, sinks = CUT_SHORT[case]
    changes = plan_recovery(facts, sinks).changes
    assert len(changes) > 2
    for done in range(len(changes) + 1):
        halfway = facts.after(changes[:done])
        repaired = halfway.after(plan_recovery(halfway, sinks).changes)
        start = next_start(repaired)
        assert start.lacks is None
        assert all(goes_on(repaired, found, start) for found in sinks)
        assert repaired.orphans == ()
        assert plan_recovery(repaired, sinks).changes == ()


@pytest.mark.parametrize("case", CUT_SHORT)
def test_a_start_of_what_is_half_done_is_harmless(case):
    """Started without a second recovery, the batch is refused, or it is one that does no harm: never another one."""
    facts, sinks = CUT_SHORT[case]
    changes = plan_recovery(facts, sinks).changes
    for done in range(len(changes) + 1):
        halfway = facts.after(changes[:done])
        start = next_start(halfway)
        for found in sinks:
            verdict = verdict_on(halfway, found, start)
            if verdict is Verdict.NEW and start.runs_again:
                assert halfway.offsets[start.after].text == found.last.offset_log


def small_worlds():
    """Every checkpoint of batches 0 to 3, whose texts are the recorded ones or not, with one sink or two."""
    numbers = range(4)
    subsets = [frozenset(found) for size in range(5) for found in itertools.combinations(numbers, size)]
    for offsets, commits in itertools.product(subsets, subsets):
        for planned in (0, 1):
            texts = {number: entry(number, planned=planned * (number % 2)) for number in offsets}
            for one, other in itertools.product(numbers, (None, *numbers)):
                sinks = [published_to(one)]
                if other is not None:
                    sinks.append(published_to(other, writer_id=2, sink_name="audit"))
                yield checkpoint(texts, commits), sinks


@pytest.mark.thorough
def test_in_every_small_world_the_next_run_leaves_nothing_out_and_doubles_nothing():
    """After a plan each sink skips its own last batch, or publishes the next one from its own end; or it is refused."""
    repaired = 0
    for facts, sinks in small_worlds():
        lasts = {found.last_batch_id for found in sinks}
        if max(lasts) - min(lasts) > 1:
            refused("RECOVERY_APART", facts, sinks)
            continue
        changes = plan_recovery(facts, sinks).changes
        after = facts.after(changes)
        start = next_start(after)
        assert start.lacks is None
        for found in sinks:
            if start.batch_id == found.last_batch_id:
                assert start.runs_again
                assert after.offsets[start.batch_id].text == found.text_of(start.batch_id)
            else:
                assert start.batch_id == found.last_batch_id + 1
                assert after.offsets[start.after].text == found.last.offset_log
        repaired += bool(changes)
    assert repaired > 1000


def test_facts_after_changes_are_those_that_would_be_read():
    """Writing and taking away change entries, commits and checksums, and nothing else."""
    facts = checkpoint(entries(1), (1,), checksums=frozenset({"offsets/.1.crc"}))
    changed = facts.after([Change("offsets/2", entry(2)), Change("commits/1", None), Change("offsets/.1.crc", None)])
    assert changed == replace(checkpoint(entries(1, 2)), checksums=frozenset())
