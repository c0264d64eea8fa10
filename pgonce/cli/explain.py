"""
Find what the documents say about an error.

Runs in the command ``pgonce explain``, where a user asks. Invariant: what is shown is the text of docs/errors.md,
which is part of the wheel, so that a host without the internet has it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import metadata
from importlib.resources import files

_DOCS = files("pgonce") / "docs"
_LINK = re.compile(r"\[([^\]^]+)\]\(([a-z-]+\.md)?(#[^)]*)?\)")


@dataclass(frozen=True)
class Entry:
    """A row of docs/errors.md, and the heading above its table."""

    name: str
    section: str
    meaning: str
    remedy: str

    def __str__(self) -> str:
        remedy = f"\n\nWhat to do: {self.remedy}" if self.remedy else ""
        return f"{self.name} ({self.section})\n\n{self.meaning}{remedy}"


def error_entries() -> dict[str, Entry]:
    """The rows of docs/errors.md, by their codes, in the order of the page."""
    return {entry.name: entry for entry in _entries((_DOCS / "errors.md").read_text(encoding="utf-8"))}


def _entries(errors: str) -> Iterator[Entry]:
    section = ""
    for line in errors.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif row := re.fullmatch(r"\| `([A-Z0-9_]+)` \| (.+) \| (.+) \|", line):
            yield Entry(row[1], section, *(_with_addresses(row[cell]) for cell in (2, 3)))


def explanation(name: str) -> str | None:
    """What the documents say about an error's code; None if it is none."""
    found = error_entries().get(name.upper().strip("[]"))
    return str(found) if found else None


def nearest(name: str) -> list[str]:
    """Codes that are like this one."""
    return difflib.get_close_matches(name.upper(), error_entries())


def _with_addresses(text: str) -> str:
    """The text of a page with the address of each link in Markdown, which a terminal would not show."""
    return _LINK.sub(lambda link: f"{link[1]} ({_address(link[2] or 'errors.md', link[3] or '')})", text)


def _address(page: str, heading: str) -> str:
    """Where this version's pages are, as the links of the README have it."""
    return f"{_documents()}/{page}{heading}"


@cache
def _documents() -> str:
    about = metadata("pgonce")
    addresses = dict(line.split(", ", 1) for line in about.get_all("Project-URL") or ())
    return f"{addresses['Repository']}/blob/v{about['Version']}/docs"
