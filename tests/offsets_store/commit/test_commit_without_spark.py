"""
Batches of another source than Spark are committed by the same code: here, the lines of a file.

Covers pgonce.offsets_store.commit as a library: what a caller brings is a batch with its range and a function that
writes the rows. It runs in a process where pyspark cannot be imported.
"""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# It plans a batch, notes the plan, commits, and notes that it is done: so does Spark, with offsets/N and commits/N.
PROGRAM = """
import json
import os
import signal
import sys
import uuid
from pathlib import Path

sys.modules["pyspark"] = None

from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.verdict.facts import PlannedBatch

LINES_A_BATCH = 4


def main(url, folder, die_at):
    lines = (folder / "lines.txt").read_text().splitlines()
    run_id = str(uuid.uuid4())
    while True:
        batch_id = len(list(folder.glob("done-*")))
        start = batch_id * LINES_A_BATCH
        if start >= len(lines):
            return
        plan = folder / f"planned-{batch_id}"
        if not plan.exists():
            plan.write_text(json.dumps({"lines": min(start + LINES_A_BATCH, len(lines)), "by": run_id}))
        end = json.loads(plan.read_text())["lines"]

        def publish(connection, batch, stored):
            with driver_connection(connection).cursor() as cursor, cursor.copy("COPY lines FROM STDIN") as copy:
                for number in range(start, end):
                    copy.write_row((number, lines[number]))
            if die_at == f"rows of {batch_id}":
                os.kill(os.getpid(), signal.SIGKILL)
            return Published(end - start, "lines")

        batch = PlannedBatch(
            query_id="the file",
            run_id=run_id,
            batch_id=batch_id,
            offset_log=plan.read_text(),
            previous_offset_log=(folder / f"planned-{batch_id - 1}").read_text() if batch_id else None,
            start={"lines": start},
            end={"lines": end},
            stateful=False,
        )
        verdict = commit_batch(CommitSettings(url), batch, Work(lambda _: "lines", publish))
        print(batch_id, verdict.name, flush=True)
        if die_at == f"commit of {batch_id}":
            os.kill(os.getpid(), signal.SIGKILL)
        (folder / f"done-{batch_id}").touch()


main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
"""


@pytest.mark.parametrize(
    ("die_at", "said_before", "said_after"),
    [
        ("rows of 2", ["0 NEW", "1 NEW"], ["2 NEW", "3 NEW"]),
        ("commit of 2", ["0 NEW", "1 NEW", "2 NEW"], ["2 REPLAY", "3 NEW"]),
    ],
)
def test_each_line_is_written_once(die_at, said_before, said_after, url, admin, tmp_path):
    """Killed before COMMIT a batch is published again; killed after it, it is known and skipped."""
    (tmp_path / "lines.txt").write_text("".join(f"line {number}\n" for number in range(14)))
    admin.execute("CREATE TABLE lines (number int, line text)")

    killed = run(url, tmp_path, die_at)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert killed.stdout.splitlines() == said_before

    finished = run(url, tmp_path, "never")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == said_after

    found = admin.execute("SELECT number, line FROM lines ORDER BY number").fetchall()
    assert found == [(number, f"line {number}") for number in range(14)]
    ends = admin.execute("SELECT end_offsets FROM pgonce.batches ORDER BY batch_id").fetchall()
    assert ends == [({"lines": end},) for end in (4, 8, 12, 14)]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the program to its end, whichever it is."""
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
