"""
``make chaos N=1000``: many faults by seed, and a table of what came of them.

Runs in: a shell. Invariant: the first line tells how to run the same again, and the exit code is 0 only where nothing
was lost, doubled or left behind.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

from chaos.campaign import Outcome, run_round
from chaos.plan import plan
from chaos.report import keep, kept, table
from kafka_broker import KafkaBroker
from postgres_binaries import DEFAULT_MAJOR, bin_dir


def main() -> int:
    """Run the faults that the command line asks for."""
    # So that all that runs is ended when this is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(description="Faults by seed against a real Postgres, Spark and Kafka.")
    parser.add_argument("--faults", type=int, default=40, help="how many (default 40)")
    parser.add_argument("--seed", type=int, help="which (default: new ones)")
    parser.add_argument("--round", type=int, help="only this round of the plan")
    parser.add_argument("--postgres", type=int, default=DEFAULT_MAJOR, help="major version, 14 to 18")
    parser.add_argument("--directory", type=Path, default=Path(".build/chaos"), help="for outcomes and evidence")
    parser.add_argument("--report", type=Path, nargs="+", help="no faults: one table of these files of outcomes")
    arguments = parser.parse_args()
    if arguments.report:
        print(table(kept(*arguments.report)))
        return 0
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(10**9)
    print(f"seed {seed}: the same again with make chaos N={arguments.faults} SEED={seed}", flush=True)
    outcomes = run(seed, arguments.faults, arguments.directory.resolve(), arguments.round, arguments.postgres)
    print(table(outcomes))
    return 1 if any(outcome.wrong or outcome.lost or outcome.doubled for outcome in outcomes) else 0


def run(seed: int, faults: int, directory: Path, only: int | None = None, major: int = DEFAULT_MAJOR) -> list[Outcome]:
    """Run a plan, or one round of it; what is printed and kept grows while it runs."""
    rounds = [one for one in plan(seed, faults) if only in (None, one.number)]
    directory.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    with ExitStack() as stack:
        broker = None
        for one in rounds:
            if one.setting.source == "kafka" and broker is None:
                broker = stack.enter_context(KafkaBroker())
            where = f"{one.setting.source}, {'cluster' if one.setting.cluster else 'local'}"
            count = sum(map(len, one.waves))
            print(f"round {one.number} ({where}; {', '.join(one.setting.workloads)}): {count} faults", flush=True)
            place = directory / f"seed-{seed}-round-{one.number}"
            for outcome in run_round(one, place, broker, bin_dir(major), lambda line: print(line, flush=True)):
                keep([outcome], directory / f"seed-{seed}.jsonl")
                outcomes.append(outcome)
                if outcome.wrong:
                    print(f"WRONG: {'; '.join(outcome.wrong)}; evidence in {place}", flush=True)
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
