"""
The outcome of the tests of one combination.

Pure, except that it reads and writes files. Invariant: an outcome names the exact versions, the commit and the tests
that were run; a version that was not available is an outcome too, with the reason.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

from matrix.combinations import Combination


@dataclass
class Outcome:
    """One combination's tests; ``suite`` says which, ``versions`` what was really installed."""

    pyspark: str
    postgres: str
    python: str
    java: str
    commit: str
    suite: str
    versions: dict[str, str] = field(default_factory=dict)
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    seconds: int = 0
    missing: str = ""

    @property
    def combination(self) -> Combination:
        """What it is the outcome of."""
        return Combination(self.pyspark, self.postgres, self.python, self.java)

    @property
    def is_good(self) -> bool:
        """Whether tests ran, and all that ran have passed."""
        return not self.missing and not self.failed and self.passed > 0

    def in_words(self) -> str:
        """A cell of the table."""
        if self.missing:
            return f"not run: {self.missing}"
        if not self.passed and not self.failed:
            return "no test ran"
        failed = (
            f", **{len(self.failed)} failed**: {', '.join(f'`{name}`' for name in self.failed)}" if self.failed else ""
        )
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        return f"{self.passed} passed{failed}{skipped} ({self.suite})"

    def take(self, report: Path) -> None:
        """Take what pytest wrote down in its JUnit file."""
        for case in ET.parse(report).getroot().iter("testcase"):
            name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            skipped = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                self.failed.append(name)
            elif skipped is not None:
                self.skipped[name] = skipped.get("message", "")
            else:
                self.passed += 1

    def keep(self, folder: Path) -> None:
        """Write it down, in the place of an earlier one."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        (folder / f"{self.combination}.json").write_text(text + "\n", encoding="utf-8")


def kept(folder: Path) -> list[Outcome]:
    """All that are written down there."""
    return [Outcome(**json.loads(file.read_text(encoding="utf-8"))) for file in folder.glob("pyspark*.json")]
