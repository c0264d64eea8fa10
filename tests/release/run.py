"""
What a release needs, one command each; the Makefile names them.

Runs in: a shell. Invariant: each check says in sentences what is wrong, all of them run, and the exit code is 1 if
anything is wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from chaos.fingerprint import fingerprint
from release.changelog import notes
from release.dependencies import budget, licences, refused
from release.versions import Repository, interface, version_in, versions

ROOT = Path(__file__).resolve().parents[2]
HERE = Repository(ROOT)


def main() -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description="What a release needs.")
    parser.add_argument("what", choices=["check", "files", "licences", "long", "notes", "tag"])
    parser.add_argument("name", nargs="?", help="a version for notes, a tag for tag; without it, pyproject.toml's")
    arguments = parser.parse_args()
    version = version_in((ROOT / "pyproject.toml").read_text())
    if arguments.what == "notes":
        print(notes((ROOT / "CHANGELOG.md").read_text(), arguments.name or version))
        return 0
    if arguments.what == "licences":
        print(*(f"{name}: {licence}" for name, licence in sorted(licences().items())), sep="\n")
        return 0
    if arguments.what == "long":
        return _run({"long runs": _long})
    if arguments.what == "tag":
        return _run({"tag": lambda: _tag(arguments.name or f"v{version}")})
    return _run({"files": _files} if arguments.what == "files" else _CHECKS)


def _run(checks: dict[str, Callable[[], list[str]]]) -> int:
    failed = False
    for name, check in checks.items():
        wrong = check()
        failed |= bool(wrong)
        print(f"{name}: {'WRONG' if wrong else 'good'}", *(f"  {line}" for line in wrong), sep="\n")
    return int(failed)


def _wheel() -> Path:
    (wheel,) = (ROOT / ".build" / "wheel").glob("*.whl")
    return wheel


_CHECKS: dict[str, Callable[[], list[str]]] = {
    "versions": lambda: versions(HERE),
    "what is public": lambda: interface(HERE),
    "licences": lambda: refused(licences()),
    "size": lambda: budget(_wheel()),
}


def _tag(tag: str) -> list[str]:
    """What keeps the commit from being released under this tag."""
    if tag not in HERE.tags_here():
        return [f"HEAD does not have the tag {tag}."]
    unsigned = HERE.why_unsigned(tag)
    return [*versions(HERE), *([unsigned] if unsigned else [])]


def _files() -> list[str]:
    """Whether the files in dist/ are those that HEAD gives in another folder."""
    there = sorted([*(ROOT / "dist").glob("*.whl"), *(ROOT / "dist").glob("*.tar.gz")])
    if len(there) != 2:
        return ["dist/ should hold a wheel and a source archive: run `make package`."]
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", f"{folder}/again"]
        elsewhere = {**os.environ, "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "1"}
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, env=elsewhere)
        again = {file.name: _hash(file) for file in Path(folder, "again").iterdir()}
    wrong = [f"{file.name} is {_hash(file)}, and {again.get(file.name)} if it is built again." for file in there
             if again.get(file.name) != _hash(file)]  # fmt: skip
    if not wrong:
        print(*(f"{_hash(file)}  {file.name}" for file in there), sep="\n")
    return wrong


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _long() -> list[str]:
    """Say what a release also needs, and takes hours; what a tagged commit lacks of it is returned."""
    print("A release also needs these, which take hours:")
    page = (ROOT / "tests" / "matrix" / "outcomes.md").read_text()
    runs = re.findall(r"\| ([0-9a-f]{10}), `([0-9a-f]{16})` \|", page)
    now = fingerprint()
    current = sum(mark == now for _, mark in runs)
    commits = ", ".join(sorted({commit for commit, _ in runs}))
    matrix = f"make matrix: {current} of {len(runs)} combinations were run on the code as it is (kept: {commits})"
    newest = max((ROOT / "benchmarks" / "results").glob("2*-*.json"))
    when, commit = newest.stem.split("-")
    since = HERE.git("rev-list", "--count", f"{commit}..HEAD", "--", "sink", "offsets_store") or "an unknown number of"
    date = datetime.strptime(f"{when}+0000", "%Y%m%dT%H%M%z").date()
    bench = f"make bench: last kept on {date} at {commit}; {since} commits since have touched sink or offsets_store"
    print(f"  {matrix}", f"  {bench}", "  make nightly: the repository does not record it", sep="\n")
    if not HERE.tags_here():
        return []
    return [*([matrix] if not runs or current < len(runs) else []), *([bench] if since != "0" else [])]


if __name__ == "__main__":
    if shutil.which("git") is None:
        sys.exit("git is missing.")
    sys.exit(main())
