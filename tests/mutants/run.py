"""
``make mutants``: break the product in each way of ``mutants.toml``, and see which proof notices.

Runs in: a shell. Invariant: the proofs pass on an unbroken copy first, and the exit code is 0 only if every mutant is
caught. The fast proofs come first; the laboratory strikes what they let through, with faults that the mutant names.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from mutants.mutant import ROOT, Mutant, all_mutants, copy_with

# In this order: the first ones take seconds, and catch what is decided without I/O.
PROOFS = {
    "verdicts": [
        "tests/offsets_store/verdict", "tests/sink/test_positions.py", "tests/sink/identity/test_from_checkpoint.py",
    ],
    "small worlds": ["tests/guarantee/test_small_worlds.py"],
    "commits": [
        "tests/offsets_store/commit", "tests/offsets_store/ledger", "tests/sink/test_staging.py",
        "tests/sink/data_source/test_promise.py", "tests/sink/data_source/test_parcel.py",
        "tests/guarantee/test_position_protocol.py", "tests/sink/writing/test_write_batch.py",
    ],
    "ledger's machine": ["tests/guarantee/test_ledger_machine.py"],
    "machine of changes": [
        "tests/sink/writing/by_key/test_apply_machine.py", "tests/sink/writing/test_routes_machine.py",
    ],
    "bad rows": ["tests/sink/writing/bad_rows"],
    "changes": ["tests/sink/writing/by_key"],
    "decoding": ["tests/sink/decoding"],
    "real time": ["tests/real_time"],
    "restored databases": ["tests/guarantee/test_restored_machine.py"],
    "receiver": ["tests/sink/data_source/receiver"],
    "model": ["tests/trial/test_model.py"],
    "conformance": ["tests/guarantee/test_conformance.py"],
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """What became of a mutant: the proof that caught it, or None, and the seconds that all took."""

    mutant: str
    proof: str | None
    test: str | None
    seconds: float


def main() -> int:
    """Run the mutants that the command line asks for."""
    arguments = _arguments()
    spec = importlib.util.find_spec("pgonce")
    if spec is None or spec.origin is None:
        raise SystemExit("pgonce is not installed: call this by `make mutants`")
    installed = Path(spec.origin).parent
    chosen = [one for one in all_mutants() if arguments.only in one.name]
    proofs = {name: paths for name, paths in PROOFS.items() if arguments.proof in name}
    folder = ROOT / ".build" / "mutants"
    if not arguments.only:
        unbroken = _first_failure(copy_with(None, installed, folder / "unbroken"), proofs)
        if unbroken is not None:
            print(f"The proofs fail without any mutant: {unbroken}", file=sys.stderr)
            return 1
    results = []
    for mutant in chosen:
        results.append(_judge(mutant, installed, folder, proofs, arguments.faults))
        print(_line(results[-1]), flush=True)
        (folder / "results.json").write_text(json.dumps([vars(one) for one in results], indent=1))
    missed = [one.mutant for one in results if one.proof is None]
    print(f"{len(results) - len(missed)} of {len(results)} mutants were caught.")
    return 1 if missed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Broken versions of the product, and what notices them.")
    parser.add_argument("--only", default="", help="mutants whose names have this text")
    parser.add_argument("--proof", default="", help="proofs whose names have this text")
    parser.add_argument("--faults", type=int, default=40, help="of the laboratory, for one mutant (default 40)")
    return parser.parse_args()


def _judge(mutant: Mutant, installed: Path, folder: Path, proofs: dict[str, list[str]], faults: int) -> Result:
    began = time.monotonic()
    copy = copy_with(mutant, installed, folder / "broken")
    nearest = {name: paths for name, paths in proofs.items() if name == mutant.nearest}
    failed = _first_failure(copy, {**nearest, **proofs})
    if failed is None and mutant.fault is not None and _is_caught_in_laboratory(copy, mutant.fault, faults):
        failed = "laboratory", mutant.fault
    proof, test = failed or (None, None)
    return Result(mutant.name, proof, test, time.monotonic() - began)


def _first_failure(copy: Path, proofs: dict[str, list[str]]) -> tuple[str, str] | None:
    """The first of the proofs that fails, and the test."""
    for name, paths in proofs.items():
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "--no-header",
            "-p",
            "no:cacheprovider",
            "-n",
            "2",
            *paths,
        ]
        done = subprocess.run(command, env=_environment(copy), cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            continue
        found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
        return name, found[1] if found else done.stdout[-500:] + done.stderr[-500:]
    return None


def _is_caught_in_laboratory(copy: Path, fault: str, faults: int) -> bool:
    command = [sys.executable, "tests/chaos/run.py", "--fault", fault, "--faults", str(faults), "--seed", "1",
               "--directory", ".build/mutants/chaos"]  # fmt: skip
    done = subprocess.run(command, env=_environment(copy), cwd=ROOT, capture_output=True, check=False)
    return done.returncode != 0


def _environment(copy: Path) -> dict[str, str]:
    """The copy comes before what is installed, in this process's children and in Spark's Python workers."""
    paths = [str(copy), str(ROOT / "testbed"), str(ROOT / "tests")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}


def _line(result: Result) -> str:
    caught = f"{result.proof}: {result.test}" if result.proof else "NOT CAUGHT"
    return f"{result.mutant} ({result.seconds:.0f} s): {caught}"


if __name__ == "__main__":
    sys.exit(main())
