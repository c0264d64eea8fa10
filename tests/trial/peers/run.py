"""
``make trial``: the same faults for what people use today, and a table of what came of them.

Runs in: a shell. Invariant: each round's outcome is kept before the next begins, so that a run can be done in pieces.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

from chaos.fingerprint import fingerprint
from flink_xa import flink_class_path
from kafka_broker import KafkaBroker, MissingTool
from kafka_connect import connect_class_path
from trial.peers.faults import FAULTS
from trial.peers.site import NeverBegan, Site
from trial.peers.table import Outcome, cell, kept, table, with_table
from trial.peers.ways import WAYS, Lane

_PAGE = Path(__file__).parent.parent / "peers.md"
_OUTCOMES = _PAGE.with_name("outcomes.jsonl")
_FAMILIES = tuple(dict.fromkeys(way.family for way in WAYS.values()))


def main() -> int:
    """Run the rounds that the command line asks for."""
    # So that all that runs is ended when this is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(description="The same faults for what people use today.")
    parser.add_argument("--lanes", type=int, default=5, help="pipelines of each way side by side (default 5)")
    parser.add_argument("--rounds", type=int, default=4, help="of each fault for each family (default 4)")
    parser.add_argument("--family", choices=_FAMILIES, action="append", help="only this one")
    parser.add_argument("--fault", choices=FAULTS, action="append", help="only this one")
    parser.add_argument(
        "--outcomes", type=Path, default=_OUTCOMES, help="a file; rounds that are in it are not run again"
    )
    parser.add_argument("--table", action="store_true", help="put the table into tests/trial/peers.md")
    arguments = parser.parse_args()
    try:
        connect_class_path()
        flink_class_path()
    except MissingTool as missing:
        print(missing, file=sys.stderr)
        return 2
    families = arguments.family or [family for family in _FAMILIES if family != "faucet" or _has_faucet()]
    done = {(WAYS[one.way].family, one.fault, one.round) for one in kept(arguments.outcomes)}
    with KafkaBroker() as broker:
        for number in range(arguments.rounds):
            for fault in arguments.fault or FAULTS:
                for family in families:
                    if (family, fault, number) not in done:
                        _run(broker, family, fault, number, arguments)
    if arguments.table:
        _PAGE.write_text(with_table(_PAGE.read_text(), _about(kept(arguments.outcomes))))
    return 0


def _has_faucet() -> bool:
    if shutil.which("faucet"):
        return True
    print("faucet-stream is left out: tests/trial/peers.md has the command that builds it.", flush=True)
    return False


def _run(broker: KafkaBroker, family: str, fault: str, number: int, arguments: argparse.Namespace) -> None:
    """One round: what it says is printed, and its outcomes are kept."""
    began = time.monotonic()
    ways = [way for way in WAYS.values() if way.family == family]
    lanes = [Lane(way, lane) for lane in range(arguments.lanes) for way in ways]
    place = Path(".build/trial").resolve() / f"{family}-{fault}-{number}"
    try:
        with Site(place, broker.bootstrap_servers, lanes) as site:
            hit = FAULTS[fault][1](site, random.Random(f"{family} {fault} {number}"))
            # What comes after the fault has to arrive as well.
            time.sleep(2)
            stopped = site.finish()
            judged = site.judge()
    except NeverBegan as why:
        print(f"{fault}, {family}, round {number}: not all lanes wrote before the fault: {why}", flush=True)
        return
    product = fingerprint()
    outcomes = [
        Outcome(product, lane.way.name, fault, number, lane.number, lane.name in hit, *judged[lane.name],
                stopped=stopped.get(lane.name, "")[:160])
        for lane in lanes
    ]  # fmt: skip
    with arguments.outcomes.open("a") as lines:
        lines.writelines(json.dumps(asdict(outcome)) + "\n" for outcome in outcomes)
    print(f"{fault}, {family}, round {number}: {time.monotonic() - began:.0f} s", flush=True)
    for way in ways:
        print(f"    {way.name}: {cell([one for one in outcomes if one.way == way.name])}", flush=True)


def _about(outcomes: list[Outcome]) -> str:
    """The table, how each way was set up, and of which product this is."""
    faults = {name: shown for name, (shown, _) in FAULTS.items()}
    ways = {way.name: way.shown for way in WAYS.values()}
    settings = "\n".join(f"- {way.shown}: {way.settings}." for way in WAYS.values())
    products = ", ".join(sorted({one.product for one in outcomes if one.way.startswith("pgonce")}))
    return f"{table(outcomes, ways, faults)}\n\n{settings}\n\npgonce is {products} (`make chaos` prints it)."


if __name__ == "__main__":
    sys.exit(main())
