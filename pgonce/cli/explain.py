"""
Find what the documents say about an error or a state.

Runs in the command ``pgonce explain``, where a user asks. Invariant: what is shown is the text of docs/errors.md and
docs/watching.md, which are part of the wheel, so that a host without the internet has them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import metadata
from importlib.resources import files

import psycopg

from pgonce.offsets_store.postgres.refused_rows import code_of

_DOCS = files("pgonce") / "docs"
_LINK = re.compile(r"\[([^\]^]+)\]\(([a-z-]+\.md)?(#[^)]*)?\)")


@dataclass(frozen=True)
class Entry:
    """A row of docs/errors.md, and the heading above its table; or a state, of the table in docs/watching.md."""

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
            yield Entry(row[1], section, *(_with_addresses(row[cell], "errors.md") for cell in (2, 3)))


def explanation(name: str) -> str | None:
    """What the documents say about an error's code, a query's state, or an SQLSTATE; None if it is none of these."""
    code = name.upper().strip("[]")
    found = error_entries().get(code) or state_entries().get(name.lower())
    return str(found) if found else _sqlstate(code)


def state_entries() -> dict[str, Entry]:
    """The states that a query can be in, by their words."""
    table = (_DOCS / "watching.md").read_text(encoding="utf-8").partition("\n## States\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z]+)` \| (.+?) \| (.*?) ?\|$", table, re.MULTILINE)
    all_states = f"All states: {_address('watching.md', '#states')}"
    found = ((state, *(_with_addresses(cell, "watching.md") for cell in cells)) for state, *cells in rows)
    return {
        state: Entry(state, "a state of a query", f"It is said if {said}. {all_states}", remedy)
        for state, said, remedy in found
    }


def _sqlstate(sqlstate: str) -> str | None:
    try:
        condition = psycopg.errors.lookup(sqlstate).__name__
    except KeyError:
        return None
    code = code_of(sqlstate)
    begins = (
        f"{sqlstate} is Postgres's SQLSTATE for {condition}. If Postgres gives it for a batch's rows, the "
        "batch fails with"
    )
    return f"{begins} {code}.\n\n{error_entries()[code]}"


def nearest(name: str) -> list[str]:
    """Codes and states that are like this one; all states if there are none."""
    near = difflib.get_close_matches(name.upper(), error_entries())
    return near + difflib.get_close_matches(name.lower(), state_entries()) or list(state_entries())


def _with_addresses(text: str, page: str) -> str:
    """The text of a page with the address of each link in Markdown, which a terminal would not show."""
    return _LINK.sub(lambda link: f"{link[1]} ({_address(link[2] or page, link[3] or '')})", text)


def _address(page: str, heading: str) -> str:
    """Where this version's pages are, as the links of the README have it."""
    return f"{_documents()}/{page}{heading}"


@cache
def _documents() -> str:
    about = metadata("pgonce")
    addresses = dict(line.split(", ", 1) for line in about.get_all("Project-URL") or ())
    return f"{addresses['Repository']}/blob/v{about['Version']}/docs"
