"""The laboratory itself: the same seed is the same plan, and what is wrong with a table is seen."""

from __future__ import annotations

import json
from collections import Counter

import psycopg
import pytest
from chaos.campaign import Outcome
from chaos.oracle import TotalsWatch, judge_running
from chaos.plan import AT_ALL, AT_ONE_QUERY, plan
from chaos.report import keep, kept, table
from chaos.sources import payload
from chaos.workloads import WORKLOADS
from fix_driver import wait_until

ROWS = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


@pytest.fixture
def ledger(tmp_path, url):
    """A checkpoint, and a ledger that counts five rows of its query."""
    (tmp_path / "metadata").write_text(json.dumps({"id": "q1"}))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE SCHEMA pgonce; CREATE TABLE pgonce.writers (writer_id int, query_id text, sink_name text);"
            "CREATE TABLE pgonce.batches (writer_id int, batch_id int, rows int, transport text, start_offsets jsonb, "
            "end_offsets jsonb, offset_log text);"
            "INSERT INTO pgonce.writers VALUES (1, 'q1', 's'); INSERT INTO pgonce.batches VALUES (1, 0, 5)"
        )
        yield connection


def fill(connection, workload, rows):
    """A workload's table with these rows, each with the payload that belongs to it."""
    connection.execute(workload.create.format(t=workload.table))
    with connection.cursor().copy(f"COPY {workload.table} (stream, position, payload) FROM STDIN") as copy:
        for stream, position in rows:
            copy.write_row((stream, position, payload(stream, position)))


class TestPlan:
    @pytest.mark.parametrize("faults", [1, 9, 40, 1000])
    def test_number(self, faults):
        """A plan has as many faults as were asked for."""
        assert sum(len(wave) for one in plan(7, faults) for wave in one.waves) == faults

    def test_seed(self):
        """The same seed gives the same plan, another one another."""
        assert plan(7, 200) == plan(7, 200)
        assert plan(7, 200) != plan(8, 200)

    def test_fits(self):
        """No fault is aimed at what it cannot hit."""
        for one in plan(7, 2000):
            for aimed in (aimed for wave in one.waves for aimed in wave):
                assert aimed.fault.fits_setting(one.setting)
                assert aimed.fault.fits_workload(aimed.workload)

    def test_everything_comes_up(self):
        """A thousand faults are of every kind, on every source and workload, with and without a cluster."""
        rounds = plan(7, 1000)
        faults = {aimed.fault for one in rounds for wave in one.waves for aimed in wave}
        assert faults == {*AT_ONE_QUERY, *(fault for fault, _ in AT_ALL)}
        assert {one.setting.source for one in rounds} == {"files", "rate", "kafka"}
        assert {one.setting.cluster for one in rounds} == {False, True}
        assert {name for one in rounds for name in one.setting.workloads} == set(WORKLOADS)


class TestOracle:
    @pytest.mark.parametrize(
        ("rows", "lost", "doubled"),
        [(ROWS, 0, 0), ([*ROWS[1:], (0, 3)], 1, 0), ([*ROWS[:-1], (0, 2)], 0, 1)],
        ids=["whole", "lost", "doubled"],
    )
    def test_rows(self, ledger, url, tmp_path, rows, lost, doubled):
        """A row that is missing in the middle, or there twice, is counted."""
        fill(ledger, WORKLOADS["append"], rows)
        found = judge_running(url, WORKLOADS["append"], tmp_path)
        assert (found.lost, found.doubled, bool(found)) == (lost, doubled, bool(lost or doubled))

    def test_content(self, ledger, url, tmp_path):
        """A row with another row's payload is wrong."""
        fill(ledger, WORKLOADS["append"], ROWS)
        ledger.execute("UPDATE events_append SET payload = md5('0:1') WHERE (stream, position) = (0, 2)")
        assert "1 wrong" in judge_running(url, WORKLOADS["append"], tmp_path).wrong[0]

    def test_ledger(self, ledger, url, tmp_path):
        """Rows that the ledger does not count are seen, though the table is a prefix of its source."""
        fill(ledger, WORKLOADS["append"], ROWS[:-1])
        assert judge_running(url, WORKLOADS["append"], tmp_path).wrong == ["events_append has 4 rows, its batches 5"]

    def test_upserted_twice(self, ledger, url, tmp_path):
        """An upsert that was done twice is doubled, though the row is there once."""
        fill(ledger, WORKLOADS["upsert"], ROWS)
        ledger.execute("UPDATE events_upsert SET payload = payload WHERE (stream, position) = (1, 0)")
        assert judge_running(url, WORKLOADS["upsert"], tmp_path).doubled == 1

    @pytest.mark.parametrize(("counts", "wrong"), [((2, 2, 1), False), ((3, 1, 1), True)])
    def test_counted(self, ledger, url, tmp_path, counts, wrong):
        """Counts must be those of a prefix: a row that was counted in place of another shows."""
        ledger.execute(WORKLOADS["counted"].create.format(t="events_counted"))
        # Ten positions in eight buckets: the first two have two, the others one.
        rows = [counts[0], counts[1], *[counts[2]] * 6]
        for bucket, n in enumerate(rows):
            total = sum(range(bucket, 10, 8)) if n == len(range(bucket, 10, 8)) else 99
            ledger.execute("INSERT INTO events_counted VALUES (0, %s, %s, %s)", [bucket, n, total])
        assert bool(judge_running(url, WORKLOADS["counted"], tmp_path)) == wrong

    def test_totals_watch(self, ledger, url):
        """Two tables that differ for a moment are seen from outside."""
        ledger.execute(WORKLOADS["two_tables"].create.format(t="events_two_tables"))
        watch = TotalsWatch(url, "events_two_tables")
        ledger.execute("INSERT INTO events_two_tables VALUES (0, 0, 'x')")
        assert wait_until(lambda: watch.differences)
        watch.stop()
        assert watch.reads


def test_report(tmp_path):
    """A fault that missed is not one that struck; lost and doubled rows are summed."""
    struck = Outcome("cut", 0, "files", "append", ["append"], recovery=2.0, lost=3, refused=["GAP"])
    missed = Outcome("cut", 0, "files", "append", [])
    end = Outcome("end of the round", 0, "files", "all", [], doubled=1)
    keep([struck, missed, end], tmp_path / "1.jsonl")
    lines = table(kept(tmp_path / "1.jsonl")).splitlines()
    assert lines[2] == "| cut | 1 | 1 | 1 | 3 | 0 | 1 | 0 | 2.0 s |"
    assert lines[-1] == "| **all** | 1 | 1 | 1 | 3 | 1 | 1 | 0 | 2.0 s |"
    assert Counter(outcome.fault for outcome in kept(tmp_path / "1.jsonl")) == {"cut": 2, "end of the round": 1}
