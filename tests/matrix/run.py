"""
``make matrix``: the conformance suite on one combination of versions after the other, and a table of what came of it.

Runs in: a shell. Invariant: each combination's outcome is written down before the next one begins, so that a run can be
done in pieces; the exit code is 0 only if every combination that was asked for has passed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from chaos.fingerprint import fingerprint
from matrix.combinations import Combination, combinations, only
from matrix.environment import FOLDER, ROOT, MissingVersionError, environment, java_home
from matrix.outcome import Outcome, kept
from matrix.page import with_outcomes

PAGE = ROOT / "tests" / "matrix" / "outcomes.md"
TESTS = ("tests/guarantee/test_conformance.py", "tests/guarantee/test_versions.py")
# What pytest's -k takes. The shorter ones leave out tests, and the shortest also leaves out ways in.
SUITES = {
    "whole": "",
    "short": "test_versions or test_replay_is_skipped or test_an_aggregate or cut_after_commit",
    "glance": "test_versions or test_replay_is_skipped and (inline or staged or writer_upsert or function_apply)",
}

_VERSIONS = """
import platform, pyspark, pyarrow, psycopg, pgpq
from importlib.metadata import version
for name in ("pyspark", "pyarrow", "psycopg", "pgpq"): print(name, version(name))
print("python", platform.python_version())
"""


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--suite", choices=SUITES, default="whole")
    arguments = parser.parse_args()
    try:
        wanted = only(arguments.only) if arguments.only else combinations()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for one in wanted:
        print(f"{one} ...", flush=True)
        outcome = _run(one, arguments.suite)
        outcome.keep(FOLDER)
        outcomes.append(outcome)
        print(f"{one}: {outcome.in_words()}, {outcome.seconds} s", flush=True)
        PAGE.write_text(with_outcomes(PAGE.read_text(encoding="utf-8"), kept(FOLDER)), encoding="utf-8")
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


def _run(one: Combination, suite: str) -> Outcome:
    outcome = Outcome(*one, commit=_commit(), suite=suite)
    began = time.monotonic()
    try:
        python, java = environment(one), java_home(one.java)
    except MissingVersionError as missing:
        outcome.missing = str(missing)
        return outcome
    report, log = FOLDER / f"{one}.xml", FOLDER / f"{one}.log"
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", *TESTS, "-n", "2", "--dist", "load", "-q", f"--junitxml={report}"]
    # The Kafka connector of one Spark does not work with another, and the tests have one.
    command += ["-m", "not kafka"]
    variables = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PGONCE_TEST_POSTGRES": one.postgres,
        "PYTHONSAFEPATH": "1",
        "JAVA_HOME": str(java),
        # An archive for each environment costs more than a few tests gain by it.
        **({} if suite == "whole" else {"PGONCE_TEST_CLASSES": "off"}),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
    }
    with log.open("w", encoding="utf-8") as said:
        subprocess.run([*command, "-k", SUITES[suite]], cwd=ROOT, env=variables, stdout=said, stderr=said, check=False)
    outcome.seconds = round(time.monotonic() - began)
    outcome.versions = _versions(python, java, log)
    if not report.exists():
        outcome.missing = f"pytest ended without a report; {log.relative_to(ROOT)} says why"
        return outcome
    outcome.take(report)
    return outcome


def _versions(python: Path, java: Path, log: Path) -> dict[str, str]:
    said = subprocess.run([python, "-c", _VERSIONS], capture_output=True, text=True, check=True).stdout
    found = dict(line.split() for line in said.splitlines())
    version = subprocess.run([java / "bin" / "java", "-version"], capture_output=True, text=True, check=True).stderr
    if number := re.search(r'version "([^"]+)"', version):
        found["java"] = number[1]
    if server := re.search(
        r"^Postgres: .*?, ([0-9.]+(?:rc\d+|beta\d+)?)", log.read_text(encoding="utf-8"), re.MULTILINE
    ):
        found["postgres"] = server[1]
    return found


def _commit() -> str:
    def git(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    # The page changes with every outcome.
    changed = git("status", "--porcelain", "--", "sink", "offsets_store", "pgonce", "pyspark_pgonce.py")
    # The fingerprint tells the product's code even where its commit was rebased.
    return f"{git('rev-parse', '--short=10', 'HEAD')}{' and changes' if changed else ''}, `{fingerprint()}`"


if __name__ == "__main__":
    sys.exit(main())
