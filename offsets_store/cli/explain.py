"""
What do the documents say about an error?

Runs in the command ``pgonce explain``. Invariant: what is shown is the text of docs/. That is part of the wheel, so
it can be read where only the package is installed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files

import psycopg

from pgonce.offsets_store.postgres.refused_rows import code_of

_LINK = re.compile(r"\[([^\]^]+)\]\(([a-z-]*)(?:\.md)?(?:#[^)]*)?\)")


@dataclass(frozen=True)
class Entry:
    """A row of docs/errors.md, and the heading above its table."""

    code: str
    section: str
    meaning: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.code} ({self.section})\n\n{self.meaning}\n\nWhat to do: {self.remedy}"


def pages() -> dict[str, str]:
    """The documents, by their names without ``.md``."""
    found = (files("pgonce") / "docs").iterdir()
    return {page.name.removesuffix(".md"): page.read_text(encoding="utf-8") for page in found}


def entries(errors: str) -> Iterator[Entry]:
    """The rows of docs/errors.md."""
    section = ""
    for line in errors.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif row := re.fullmatch(r"\| `([A-Z0-9_]+)` \| (.+) \| (.+) \|", line):
            yield Entry(row[1], section, _without_links(row[2]), _without_links(row[3]))


def explanation(name: str) -> str | None:
    """What the documents say about a code, an SQLSTATE, or a whole page by its name; None where there is none."""
    found = {entry.code: str(entry) for entry in entries(pages()["errors"])}
    code = name.upper().strip("[]")
    return found.get(code) or pages().get(name.lower()) or _sqlstate(code, found)


def _sqlstate(sqlstate: str, found: Mapping[str, str]) -> str | None:
    try:
        condition = psycopg.errors.lookup(sqlstate).__name__
    except KeyError:
        return None
    code = code_of(sqlstate)
    begins = f"{sqlstate} is Postgres's SQLSTATE for {condition}. If Postgres says so of a batch's rows, it fails with"
    return f"{begins} {code}.\n\n{found[code]}"


def nearest(name: str) -> list[str]:
    """Codes and pages whose names are like this one; all pages if there are none."""
    codes = [entry.code for entry in entries(pages()["errors"])]
    near = difflib.get_close_matches(name.upper(), codes) + difflib.get_close_matches(name.lower(), pages())
    return near or sorted(pages())


def _without_links(text: str) -> str:
    """The text with each link in Markdown as the command that shows the page."""
    return _LINK.sub(lambda link: f"{link[1]} (`pgonce explain {link[2] or 'errors'}`)", text)
