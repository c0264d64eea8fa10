"""The laboratory itself: the same seed is the same plan, and what is wrong with a table is seen."""

from __future__ import annotations

import json

import pytest
from chaos.campaign import Outcome
from chaos.families import AT_ALL, AT_ONE_QUERY, DISK, FIREWALL, POOLER
from chaos.oracle import TotalsWatch, judge_running
from chaos.plan import plan, plan_of
from chaos.proof import BEGIN, END, KeptRun, Product, fingerprint_in, put_into_docs, table_in
from chaos.report import table
from chaos.resources import ServersDiskFull
from chaos.sources import payload
from chaos.workloads import IN_MICRO_BATCHES, IN_REAL_TIME, WORKLOADS
from support.fixtures.driver import wait_until

ROWS = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


@pytest.fixture
def ledger(tmp_path, admin):
    """A checkpoint, and a ledger that counts five rows of its query."""
    (tmp_path / "metadata").write_text(json.dumps({"id": "q1"}))
    admin.execute(
        "CREATE SCHEMA pgonce; CREATE TABLE pgonce.writers (writer_id int, query_id text, sink_name text);"
        "CREATE TABLE pgonce.batches (writer_id int, batch_id int, rows int, transport text, start_offsets jsonb, "
        "end_offsets jsonb, offset_log text);"
        "INSERT INTO pgonce.writers VALUES (1, 'q1', 's'); INSERT INTO pgonce.batches VALUES (1, 0, 5)"
    )
    return admin


def fill(connection, workload, rows):
    """A workload's table with these rows, each with the payload that belongs to it."""
    connection.execute(workload.create.format(t=workload.table))
    with connection.cursor().copy(f"COPY {workload.table} (stream, position, payload) FROM STDIN") as copy:
        for stream, position in rows:
            copy.write_row((stream, position, payload(stream, position)))


def struck_by(rounds):
    """The faults of a plan."""
    return {aimed.fault for one in rounds for wave in one.waves for aimed in wave}


class TestPlan:
    @pytest.mark.parametrize("faults", [1, 9, 12, 40, 1000])
    @pytest.mark.parametrize("only", [None, "micro-batches", "real-time"])
    def test_a_plan_has_as_many_faults_as_were_asked_for(self, faults, only):
        """A plan has as many faults as were asked for."""
        assert sum(len(wave) for one in plan(7, faults, only=only) for wave in one.waves) == faults

    def test_the_same_seed_gives_the_same_plan(self):
        """The same seed gives the same plan, another one another."""
        assert plan(7, 200) == plan(7, 200)
        assert plan(7, 200) != plan(8, 200)

    def test_no_fault_is_aimed_at_what_it_cannot_hit(self):
        """No fault is aimed at what it cannot hit."""
        for one in plan(7, 2000):
            for aimed in (aimed for wave in one.waves for aimed in wave):
                assert aimed.fault.fits_query(one.setting, aimed.workload)

    def test_a_thousand_faults_are_of_every_kind(self):
        """A thousand faults are of every kind, on every source and workload, with and without a cluster."""
        rounds = plan(7, 1000)
        assert struck_by(rounds) == {*(f for family in AT_ONE_QUERY for f in family.faults), *(f for f, _ in AT_ALL)}
        assert {one.setting.source for one in rounds} == {"files", "rate", "kafka"}
        assert {one.setting.cluster for one in rounds} == {False, True}
        assert {name for one in rounds for name in one.setting.workloads} == set(WORKLOADS)
        assert {name for one in rounds for name in one.setting.pooled} == set(IN_MICRO_BATCHES)

    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("faults", [32, 100, 1000])
    def test_about_a_quarter_of_the_rounds_are_in_real_time(self, seed, faults):
        """A plan of 32 faults or more has queries in real time, in about a quarter of its rounds."""
        rounds = plan(seed, faults)
        in_real_time = [one for one in rounds if one.setting.in_real_time]
        assert in_real_time
        assert len(rounds) // 4 <= len(in_real_time) <= -(-len(rounds) // 4)
        assert all(set(one.setting.workloads) == set(IN_REAL_TIME) for one in in_real_time)
        assert all(one.setting.source == "kafka" for one in in_real_time)

    @pytest.mark.parametrize("seed", range(20))
    def test_a_short_plan_has_every_family_and_every_stateless_workload(self, seed):
        """What CONTRIBUTING.md begins with has faults of every family, and every workload without state."""
        rounds = plan(seed, 32)
        drawn = struck_by(rounds)
        assert [family.faults[0].name for family in AT_ONE_QUERY if not drawn & set(family.faults)] == []
        stateless = {name for name, workload in WORKLOADS.items() if not workload.stateful}
        assert stateless <= {name for one in rounds for name in one.setting.workloads}

    def test_a_fault_whose_tool_is_missing_is_left_out(self):
        """What needs a tool that is not there is left out, and nothing else is."""
        rounds = plan(7, 1000, (POOLER, FIREWALL, DISK))
        here = {fault for family in AT_ONE_QUERY if family.needs is None for fault in family.faults}
        assert struck_by(rounds) == here | {fault for fault, _ in AT_ALL} - {ServersDiskFull()}
        assert not any(one.setting.pooled for one in rounds)

    @pytest.mark.parametrize("name", sorted({f.name for family in AT_ONE_QUERY for f in family.faults}))
    def test_a_single_kind_of_fault_can_be_asked_for(self, name):
        """A single kind of fault can be asked for, by its name."""
        assert all(name in fault.name for fault in struck_by(plan_of(name, 7, 5)))


class TestOracle:
    @pytest.mark.parametrize(
        ("rows", "lost", "doubled"),
        [(ROWS, 0, 0), ([*ROWS[1:], (0, 3)], 1, 0), ([*ROWS[:-1], (0, 2)], 0, 1)],
        ids=["whole", "lost", "doubled"],
    )
    def test_a_row_that_is_missing_or_there_twice_is_counted(self, ledger, url, tmp_path, rows, lost, doubled):
        """A row that is missing in the middle, or there twice, is counted."""
        fill(ledger, WORKLOADS["append"], rows)
        found = judge_running(url, WORKLOADS["append"], tmp_path)
        assert (found.lost, found.doubled, bool(found)) == (lost, doubled, bool(lost or doubled))

    def test_a_row_with_the_payload_of_another_is_wrong(self, ledger, url, tmp_path):
        """A row with another row's payload is wrong."""
        fill(ledger, WORKLOADS["append"], ROWS)
        ledger.execute("UPDATE events_append SET payload = md5('0:1') WHERE (stream, position) = (0, 2)")
        assert "1 altered" in judge_running(url, WORKLOADS["append"], tmp_path).wrong[0]

    def test_rows_that_the_ledger_does_not_count_are_seen(self, ledger, url, tmp_path):
        """Rows that the ledger does not count are seen, though the table is a prefix of its source."""
        fill(ledger, WORKLOADS["append"], ROWS[:-1])
        assert judge_running(url, WORKLOADS["append"], tmp_path).wrong == ["events_append has 4 rows, its batches 5"]

    def test_an_upsert_that_was_done_twice_is_doubled(self, ledger, url, tmp_path):
        """An upsert that was done twice is doubled, though the row is there once."""
        fill(ledger, WORKLOADS["upsert"], ROWS)
        ledger.execute("UPDATE events_upsert SET payload = payload WHERE (stream, position) = (1, 0)")
        assert judge_running(url, WORKLOADS["upsert"], tmp_path).doubled == 1

    @pytest.mark.parametrize(("again", "wrong"), [(False, False), (True, True)], ids=["in order", "done again"])
    def test_a_batch_that_was_upserted_again_after_a_later_one_is_seen(self, ledger, url, tmp_path, again, wrong):
        """A batch that was upserted again after a later one shows, though every row is there once."""
        ledger.execute(WORKLOADS["merged"].create.format(t="events_merged"))
        # Of positions 0 to 3, in batches of two: the second batch has written the last row of the first again.
        written_by = {0: 1, 1: 1 if again else 2, 2: 3, 3: 3}
        for position, by in written_by.items():
            row = [position, payload(0, position), by]
            ledger.execute("INSERT INTO events_merged VALUES (0, %s, %s, %s)", row)
        assert bool(judge_running(url, WORKLOADS["merged"], tmp_path)) == wrong

    @pytest.mark.parametrize(("counts", "wrong"), [((2, 2, 1), False), ((3, 1, 1), True)])
    def test_a_row_that_was_counted_in_place_of_another_is_seen(self, ledger, url, tmp_path, counts, wrong):
        """Counts must be those of a prefix: a row that was counted in place of another shows."""
        ledger.execute(WORKLOADS["counted"].create.format(t="events_counted"))
        # Ten positions in eight buckets: the first two have two, the others one.
        rows = [counts[0], counts[1], *[counts[2]] * 6]
        for bucket, n in enumerate(rows):
            total = sum(range(bucket, 10, 8)) if n == len(range(bucket, 10, 8)) else 99
            ledger.execute("INSERT INTO events_counted VALUES (0, %s, %s, %s)", [bucket, n, total])
        assert bool(judge_running(url, WORKLOADS["counted"], tmp_path)) == wrong

    @pytest.mark.parametrize(
        ("rows", "next_offsets", "end", "wrong"),
        [
            (ROWS, (3, 2), 3, ""),
            ([ROWS[0], ROWS[2], ROWS[1], *ROWS[3:]], (3, 2), 3, "2 altered"),
            (ROWS, (3, 3), 3, "partition 1: 2 rows, position 3"),
            (ROWS, (3, 2), 4, "batch 0 ends at 4, rows do at 3"),
        ],
        ids=["whole", "out of order", "a position too far", "a record too far"],
    )
    def test_rows_and_positions_of_real_time_must_agree(self, ledger, url, tmp_path, rows, next_offsets, end, wrong):
        """In real time rows must have come in order, and neither positions nor records in the ledger go beyond them."""
        fill(ledger, WORKLOADS["real_time"], rows)
        ledger.execute(
            "CREATE TABLE pgonce.positions (writer_id int, partition int, next_offset int, moved_at timestamptz)"
        )
        for partition, at in enumerate(next_offsets):
            ledger.execute("INSERT INTO pgonce.positions VALUES (1, %s, %s, now())", [partition, at])
        ends = json.dumps({"0": {"topic": {"0": end}}})
        ledger.execute("UPDATE pgonce.batches SET end_offsets = %s", [ends])
        found = judge_running(url, WORKLOADS["real_time"], tmp_path)
        assert bool(found) == bool(wrong)
        assert wrong in " ".join(found.wrong)

    def test_two_tables_that_differ_for_a_moment_are_seen(self, ledger, url):
        """Two tables that differ for a moment are seen from outside."""
        ledger.execute(WORKLOADS["two_tables"].create.format(t="events_two_tables"))
        watch = TotalsWatch(url, "events_two_tables")
        ledger.execute("INSERT INTO events_two_tables VALUES (0, 0, 'x')")
        assert wait_until(lambda: watch.differences)
        watch.stop()
        assert watch.reads


STRUCK = Outcome("cut", 0, "files", "append", ["append"], recovery=2.0, lost=3, refused=["GAP"])
MISSED = Outcome("cut", 0, "files", "append", [])
ENDED = Outcome("end of the round", 0, "files", "all", [], doubled=1, paths={"upserts by MERGE": 1200})
PRODUCT = Product("0123456789abcdef", "4b62986", changed=False, versions="Postgres 18.4")


class TestReport:
    def test_a_fault_that_missed_is_not_one_that_struck(self):
        """A fault that missed is not one that struck; lost and doubled rows are summed."""
        lines = table([STRUCK, MISSED, ENDED]).splitlines()
        assert lines[2] == "| cut | 1 | 1 | 1 | 3 | 0 | 1 | 0 | 2.0 s |"
        assert lines[-1] == "| **all** | 1 | 1 | 1 | 3 | 1 | 1 | 0 | 2.0 s |"

    def test_the_new_table_takes_the_place_of_the_one_before(self, tmp_path):
        """The table takes the place of the one before it, between its marks."""
        document = tmp_path / "faults.md"
        document.write_text(f"Before.\n{BEGIN}\nold\n{END}\nAfter.\n")
        put_into_docs([KeptRun(PRODUCT, 7, 24, (), None, [STRUCK, ENDED])], document)
        text = document.read_text()
        assert text.startswith(f"Before.\n{BEGIN}\n1 faults")
        assert text.endswith(f"{END}\nAfter.\n")
        assert "old" not in text
        assert fingerprint_in(table_in(document)) == PRODUCT.fingerprint
