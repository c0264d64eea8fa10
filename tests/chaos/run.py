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
from typing import get_args

from black_hole import refuse_without_tools
from chaos.campaign import Outcome, run_round
from chaos.families import DISK, FIREWALL, POOLER
from chaos.fingerprint import fingerprint
from chaos.plan import Only, Round, plan, plan_of
from chaos.proof import KeptRun, Product, fingerprint_in, put_into_docs, set_aside, table_in, table_of
from chaos.report import keep
from kafka_broker import KafkaBroker, MissingTool
from pgbouncer import PgBouncer
from postgres_binaries import DEFAULT_MAJOR, bin_dir
from small_disk import refuse_without_disk
from support.fixtures.skips import everything_required


def main() -> int:
    """Run the faults that the command line asks for."""
    # So that all that runs is ended when this is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments = _arguments()
    if arguments.check:
        return _check()
    if arguments.report:
        return _report([KeptRun.read(file) for file in arguments.report], into_docs=arguments.table)
    missing = _missing_tools()
    if missing and everything_required():
        print(f"CI must have {' and '.join(missing)}: no fault may be left out.", file=sys.stderr)
        return 1
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(10**9)
    product = Product.here(arguments.postgres)
    plan_run = KeptRun(product, seed, arguments.faults, missing, arguments.fault, only=arguments.only)
    print(f"seed {seed}: the same again with {plan_run.command}; RESUME=1 goes on with it", flush=True)
    if arguments.fault:
        rounds = plan_of(arguments.fault, seed, arguments.faults, missing, arguments.only)
    else:
        rounds = plan(seed, arguments.faults, missing, arguments.only)
    if arguments.round is not None:
        rounds = [one for one in rounds if one.number == arguments.round]
    directory = arguments.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    # A round by itself has a file of its own: it may be run again during a long run, and be reported with it.
    part = "" if arguments.round is None else f"-only-round-{arguments.round}"
    file = directory / f"seed-{seed}{part}.jsonl"
    done = plan_run.begin(file, resume=arguments.resume)
    _strike([one for one in rounds if one.number not in done], file, directory, seed, arguments.postgres)
    return _report([KeptRun.read(file)], into_docs=arguments.table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Faults by seed against a real Postgres, Spark and Kafka.")
    parser.add_argument("--faults", type=int, default=40, help="how many (default 40)")
    parser.add_argument("--seed", type=int, help="which (default: new ones)")
    parser.add_argument("--round", type=int, help="only this round of the plan")
    parser.add_argument("--fault", help="only faults whose names have this text, in one round")
    parser.add_argument("--only", choices=get_args(Only), help="only rounds of queries of this kind")
    parser.add_argument("--resume", action="store_true", help="go on after the last round that came to its end")
    parser.add_argument("--postgres", type=int, default=DEFAULT_MAJOR, help="major version, 14 to 19")
    parser.add_argument("--directory", type=Path, default=Path(".build/chaos"), help="for outcomes and evidence")
    parser.add_argument("--report", type=Path, nargs="+", help="no faults: one table of these files of outcomes")
    parser.add_argument("--check", action="store_true", help="no faults: is the table in the docs about this product?")
    parser.add_argument("--table", action="store_true", help="put the table into tests/chaos/faults.md")
    return parser.parse_args()


def _missing_tools() -> tuple[str, ...]:
    """What this machine lacks, with a sentence for each."""
    missing = []
    for tool, look in ((POOLER, lambda: PgBouncer({})), (FIREWALL, refuse_without_tools), (DISK, refuse_without_disk)):
        try:
            look()
        except MissingTool as why:
            print(f"{why} Faults that need it are left out.", file=sys.stderr, flush=True)
            missing.append(tool)
    return tuple(missing)


def _strike(rounds: list[Round], file: Path, directory: Path, seed: int, major: int) -> None:
    """Run rounds; what is printed and kept grows while they run."""
    with ExitStack() as stack:
        broker = None
        for one in rounds:
            if one.setting.source == "kafka" and broker is None:
                broker = stack.enter_context(KafkaBroker())
            queries = ", ".join(f"{name} (PgBouncer)" if name in one.setting.pooled else name
                                for name in one.setting.workloads)  # fmt: skip
            where = f"{one.setting.source}, {'cluster' if one.setting.cluster else 'local'}; {queries}"
            print(f"round {one.number} ({where}): {sum(map(len, one.waves))} faults", flush=True)
            place = directory / f"seed-{seed}-round-{one.number}"
            set_aside(place)
            for outcome in run_round(one, place, broker, bin_dir(major), lambda line: print(line, flush=True)):
                keep([outcome], file)
                if outcome.wrong:
                    print(f"WRONG: {'; '.join(outcome.wrong)}; evidence in {place}", flush=True)


def _report(runs: list[KeptRun], *, into_docs: bool) -> int:
    outcomes: list[Outcome] = [outcome for run in runs for outcome in run.outcomes]
    print(table_of(runs))
    if any(outcome.wrong or outcome.lost or outcome.doubled for outcome in outcomes):
        return 1
    if into_docs:
        put_into_docs(runs)
    return 0


def _check() -> int:
    """A release, and the end of an issue, need a table that is about the product as it is."""
    if fingerprint_in(table_in()) == fingerprint():
        return 0
    print(
        "The table of faults in tests/chaos/faults.md is about another product. Commit your changes, then "
        "run `make chaos N=1000 TABLE=1` (hours) or a smaller number; the table says how many faults it was.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
