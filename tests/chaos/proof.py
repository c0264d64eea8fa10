"""
Record which product a run of the laboratory was about, and write its table into tests/chaos/faults.md.

Runs in: a shell, with the laboratory. Invariant: one table is of one product, by its fingerprint; the table says how
many faults were struck, with which seed, on which commit and versions, and what was left out.
"""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyspark
from chaos.campaign import Outcome
from chaos.fingerprint import ROOT, fingerprint
from chaos.report import table
from postgres_binaries import bin_dir
from typing_extensions import Self

DOCUMENT = ROOT / "tests" / "chaos" / "faults.md"
BEGIN = "<!-- `make chaos TABLE=1` writes what stands between these two marks. -->"
END = "<!-- The end of what it writes. -->"
_FINGERPRINT = re.compile(r"fingerprint `([0-9a-f]{16})`")
_END_OF_ROUND = "end of the round"


@dataclass(frozen=True)
class Product:
    """What was run: ``changed`` tells that the working tree was not what the commit has."""

    fingerprint: str
    commit: str
    changed: bool
    versions: str

    @classmethod
    def here(cls, postgres_major: int) -> Self:
        """That of this working tree, with this Postgres."""
        postgres = _said_by(str(bin_dir(postgres_major) / "postgres"), "--version").split()[-1]
        pom = (ROOT / "testbed" / "broker" / "pom.xml").read_text()
        kafka = re.findall(r"<artifactId>kafka_.*?<version>(.*?)</version>", pom, re.DOTALL)[0]
        versions = (
            f"PySpark {pyspark.__version__}, Postgres {postgres}, Kafka {kafka}, psycopg {psycopg.__version__}, "
            f"Python {platform.python_version()}, {os.cpu_count()} cores"
        )
        changed = bool(_said_by("git", "status", "--porcelain", "--untracked-files=no"))
        return cls(fingerprint(), _said_by("git", "rev-parse", "--short=10", "HEAD"), changed, versions)


def set_aside(place: Path) -> None:
    """Rename what a round has left that was cut short: it may be evidence, and the round begins in an empty folder."""
    if place.exists():
        place.rename(place.with_name(f"{place.name}-cut-short-{secrets.token_hex(4)}"))


@dataclass
class KeptRun:
    """
    A plan, or some rounds of it, and what came of them; in a file, a JSON object a line, the first of which says which.

    :param missing: tools that the machine lacked.
    :param fault: only faults whose names have this text.
    :param only: only rounds of this kind.
    """

    product: Product
    seed: int
    faults: int
    missing: Sequence[str] = ()
    fault: str | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    only: str | None = None

    @property
    def command(self) -> str:
        """What runs it again."""
        chosen = (f" FAULT='{self.fault}'" if self.fault else "") + (f" ONLY={self.only}" if self.only else "")
        return f"make chaos N={self.faults} SEED={self.seed}{chosen}"

    def begin(self, file: Path, *, resume: bool) -> set[int]:
        """
        Write the first line, where there is none; which rounds are done.

        With ``resume``, the outcomes of a round that did not come to its end are forgotten, for it is run again.
        """
        if not (resume and file.exists()):
            if file.exists():
                file.replace(file.with_suffix(".before.jsonl"))
            self._write(file)
            return set()
        before = KeptRun.read(file)
        if before._key() != self._key():
            sys.exit(f"{file} is of another product or plan, and cannot be gone on with: {before._key()}")
        done = set(before.whole_rounds())
        before.outcomes = [outcome for outcome in before.outcomes if outcome.round in done]
        before._write(file)
        return done

    def whole_rounds(self) -> list[int]:
        """The rounds that came to their end."""
        return [outcome.round for outcome in self.outcomes if outcome.fault == _END_OF_ROUND]

    def _key(self) -> tuple[Any, ...]:
        return self.product.fingerprint, self.seed, self.faults, list(self.missing), self.fault, self.only

    def _write(self, file: Path) -> None:
        head = asdict(self)
        outcomes = head.pop("outcomes")
        unfinished = file.with_suffix(".unfinished")
        unfinished.write_text("".join(json.dumps(line) + "\n" for line in (head, *outcomes)))
        unfinished.replace(file)

    @classmethod
    def read(cls, file: Path) -> Self:
        """What a file has."""
        head, *lines = map(json.loads, file.read_text().splitlines())
        product = Product(**head.pop("product"))
        return cls(product, **head, outcomes=[Outcome(**line) for line in lines])


def table_of(runs: Sequence[KeptRun]) -> str:
    """
    What was run, a row for each fault, and which paths were taken; as Markdown.

    A round that several files have counts as the last of them has it, and is named. One that did not come to its end,
    where all is judged once more, does not count.
    """
    if len({run.product.fingerprint for run in runs}) > 1:
        sys.exit("These files are of several products (by their fingerprints): one table cannot be of them all.")
    rounds: dict[tuple[str, int], list[Outcome]] = {}
    again: list[str] = []
    for run in runs:
        for number in run.whole_rounds():
            key = run.command, number
            again += [f"round {number} of seed {run.seed}"] if key in rounds else []
            rounds[key] = [outcome for outcome in run.outcomes if outcome.round == number]
    outcomes = [outcome for found in rounds.values() for outcome in found]
    paths: Counter[str] = Counter()
    for outcome in outcomes:
        paths.update(outcome.paths)
    counted = ", ".join(f"{path} {times:,}" for path, times in sorted(paths.items()))
    return "\n".join([_head(runs, outcomes, again), "", table(outcomes), "", f"Paths that batches took: {counted}."])


def _head(runs: Sequence[KeptRun], outcomes: list[Outcome], again: list[str]) -> str:
    product = runs[-1].product
    struck = sum(bool(outcome.hit) for outcome in outcomes)
    tried = sum(outcome.fault != _END_OF_ROUND for outcome in outcomes)
    commands = dict.fromkeys(f"`{run.command}`" for run in runs)
    commits = dict.fromkeys(run.product.commit + (" with changes" if run.product.changed else "") for run in runs)
    sentences = [
        f"{struck} faults, each seen to hit what it aimed at, of {tried} that were tried: {', '.join(commands)}.",
        f"Product of commit {', '.join(commits)}, fingerprint `{product.fingerprint}`; {product.versions}.",
    ]
    if missing := {tool for run in runs for tool in run.missing}:
        sentences.append(
            f"Left out, because the machine lacked what they need: faults of {', '.join(sorted(missing))}."
        )
    if again:
        sentences.append(f"Run again, and counted as they went then: {', '.join(dict.fromkeys(again))}.")
    return "\n".join(sentences)


def put_into_docs(runs: Sequence[KeptRun], document: Path = DOCUMENT) -> None:
    """Put the table between the two marks."""
    before, _, rest = document.read_text().partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        sys.exit(f"{document} lacks the marks: {BEGIN} ... {END}")
    document.write_text(f"{before}{BEGIN}\n{table_of(runs)}\n{END}{after}")


def table_in(document: Path = DOCUMENT) -> str:
    """What stands between the marks."""
    return document.read_text().partition(BEGIN)[2].partition(END)[0]


def fingerprint_in(text: str) -> str | None:
    """The fingerprint of the product that a table is about."""
    found = _FINGERPRINT.search(text)
    return found[1] if found else None


def _said_by(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
