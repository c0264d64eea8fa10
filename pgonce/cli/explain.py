"""
Find what the documents say about an error, under a heading, or of a word; and explain an error that was raised.

Runs in the command ``pgonce explain``, and in ``pgonce.explain``, where a user asks. Invariant: what is shown is the
text of docs/. That is part of the wheel, so it can be read where only the package is installed.
"""

from __future__ import annotations

import difflib
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

import psycopg

from pgonce.offsets_store.errors import PgonceError, Said, said_in
from pgonce.offsets_store.postgres.refused_rows import code_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_DOCS = files("pgonce") / "docs"
# How many headings, and how many codes, are listed for a word.
_MOST_HEADINGS = 12
_MOST_CODES = 8

_HEADING = re.compile(r"(#{1,4}) (.+)")
# A picture says nothing in a terminal.
_PICTURE = re.compile(r"^!\[[^\]]*\]\([^)]*\)\n\n?", re.MULTILINE)
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


@dataclass(frozen=True)
class Section:
    """What stands under a heading of a page, with the headings that are below it."""

    page: str
    heading: str
    level: int
    text: str

    @property
    def command(self) -> str:
        """What shows it."""
        heading = f" {shlex.quote(self.heading.replace('`', ''))}" if self.level > 1 else ""
        return f"pgonce explain {self.page}{heading}"

    def is_called(self, name: str) -> bool:
        """Whether this is its heading, in any case and with or without backticks."""
        return _plain(self.heading) == _plain(name)


def _plain(heading: str) -> str:
    return " ".join(heading.replace("`", "").casefold().split())


def sections(page: str, text: str) -> list[Section]:
    """The sections of a page, in its order; the whole page is the first one."""
    lines = text.splitlines()
    starts: list[tuple[int, int, str]] = []
    is_code = False
    for number, line in enumerate(lines):
        is_code ^= line.startswith("```")
        found = None if is_code else _HEADING.fullmatch(line)
        if found:
            starts.append((number, len(found[1]), found[2]))
    return [
        Section(page, heading, level, "\n".join(lines[start : _end(starts[place + 1 :], level, len(lines))]).rstrip())
        for place, (start, level, heading) in enumerate(starts)
    ]


def _end(later: Sequence[tuple[int, int, str]], level: int, last: int) -> int:
    return next((start for start, other, _ in later if other <= level), last)


def page_list() -> str:
    """The names of all pages, with their titles."""
    found = pages()
    width = max(map(len, found))
    titles = "\n".join(f"  {name:{width}}  {found[name].splitlines()[0].lstrip('# ')}" for name in sorted(found))
    return f"The pages are:\n{titles}\n\nYou can also give the code of an error, a heading or a word."


def under_heading(page: str, heading: str) -> str | None:
    """
    What a page has under a heading, or under each that contains these words; None where none does.

    :raises KeyError: if there is no such page.
    """
    all_of_page = sections(page, pages()[page])
    exact = [section for section in all_of_page if section.is_called(heading)]
    found = exact or [section for section in all_of_page[1:] if _plain(heading) in _plain(section.heading)]
    return "\n\n".join(section.text for section in found) or None


def headings(page: str) -> list[str]:
    """The headings of a page, without its title."""
    return [section.heading for section in sections(page, pages()[page])[1:]]


def _by_heading_or_word(name: str) -> str | None:
    """What is under the only heading that reads so; or where the words stand, those in headings first."""
    everywhere = [section for page, text in sorted(pages().items()) for section in sections(page, text)]
    called = [section for section in everywhere if section.is_called(name)]
    if len(called) == 1:
        return called[0].text
    word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE)
    codes = [code for code, entry in error_entries().items() if word.search(f"{entry.meaning} {entry.remedy}")]
    counted = [(_own_mentions(word, section), section) for section in everywhere if section.page != "errors"]
    found = sorted(
        (each for each in counted if each[0] or word.search(each[1].heading)),
        key=lambda each: (not word.search(each[1].heading), -each[0]),
    )
    if not found and not codes:
        return None
    lines = [
        f"{name!r} is mentioned under these headings:",
        *(f"  {section.command}" for _, section in found[:_MOST_HEADINGS]),
    ]
    if len(found) > _MOST_HEADINGS:
        lines.append(f"  and under {len(found) - _MOST_HEADINGS} others")
    if codes:
        more = f", and {len(codes) - _MOST_CODES} others" if len(codes) > _MOST_CODES else ""
        lines.append(f"Codes whose explanation mentions it: {', '.join(codes[:_MOST_CODES])}{more}")
    return "\n".join(lines if found else lines[1:])


def _own_mentions(word: re.Pattern[str], section: Section) -> int:
    """How often it stands in a section before the next heading."""
    own = section.text.splitlines()[1:]
    end = next((number for number, line in enumerate(own) if _HEADING.fullmatch(line)), len(own))
    return len(word.findall("\n".join(own[:end])))


def pages() -> dict[str, str]:
    """The documents, by their names without ``.md``, and without pictures."""
    found = [file for file in _DOCS.iterdir() if file.name.endswith(".md")]
    return {page.name.removesuffix(".md"): _PICTURE.sub("", page.read_text(encoding="utf-8")) for page in found}


def error_entries() -> dict[str, Entry]:
    """The rows of docs/errors.md, by their codes, in the order of the page."""
    return {entry.code: entry for entry in _entries((_DOCS / "errors.md").read_text(encoding="utf-8"))}


def _entries(errors: str) -> Iterator[Entry]:
    section = ""
    for line in errors.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif row := re.fullmatch(r"\| `([A-Z0-9_]+)` \| (.+) \| (.+) \|", line):
            yield Entry(row[1], section, _without_links(row[2]), _without_links(row[3]))


def explanation(name: str) -> str | None:
    """
    What the documents say about a code, a whole page by its name, a query's state, an SQLSTATE, a heading, or a word.

    None if there is none of these.
    """
    found = {code: str(entry) for code, entry in error_entries().items()}
    states = {state: str(entry) for state, entry in state_entries().items()}
    code, word = name.upper().strip("[]"), name.lower()
    return (
        found.get(code) or pages().get(word) or states.get(word) or _sqlstate(code, found) or _by_heading_or_word(name)
    )


@dataclass(frozen=True)
class StateEntry:
    """A row of the table of states in docs/watching.md."""

    state: str
    said_if: str
    remedy: str

    def __str__(self) -> str:
        remedy = f"\n\nWhat to do: {self.remedy}" if self.remedy else ""
        said = f"{self.state} (a state of a query)\n\nIt is said if {self.said_if}.{remedy}"
        return f"{said}\n\nAll states: pgonce explain watching States"


def state_entries() -> dict[str, StateEntry]:
    """The states that a query can be in, by their words."""
    table = under_heading("watching", "States") or ""
    rows = re.findall(r"^\| `([a-z]+)` \| (.+?) \| (.*?) ?\|$", table, re.MULTILINE)
    return {state: StateEntry(state, _without_links(said), _without_links(remedy)) for state, said, remedy in rows}


def _sqlstate(sqlstate: str, found: Mapping[str, str]) -> str | None:
    try:
        condition = psycopg.errors.lookup(sqlstate).__name__
    except KeyError:
        return None
    code = code_of(sqlstate)
    begins = (
        f"{sqlstate} is Postgres's SQLSTATE for {condition}. If Postgres gives it for a batch's rows, the "
        "batch fails with"
    )
    return f"{begins} {code}.\n\n{found[code]}"


def nearest(name: str) -> list[str]:
    """Codes, pages and headings that are like this one; all pages if there are none."""
    near = difflib.get_close_matches(name.upper(), error_entries()) + difflib.get_close_matches(name.lower(), pages())
    return near or sorted(pages())


def _without_links(text: str) -> str:
    """The text with each link in Markdown as the command that shows the page."""
    return _LINK.sub(lambda link: f"{link[1]} (`pgonce explain {link[2] or 'errors'}`)", text)


_WIDTH = 100


class Explanation(str):
    """A text of several lines, which a notebook and a Python prompt show as it reads."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def explain(what: StreamingQuery | BaseException | str) -> str:
    """
    What went wrong, what it means for the data, and what to type; a notebook shows the text as it reads.

    :param what: a query, whose exception is explained; an exception, of pgonce or one of Spark that has pgonce's text
        in it; the text of one; or a code, such as ``TYPE_MISMATCH``.
    """
    if isinstance(what, PgonceError):
        return _explained(Said(what.code, f"{what.what} {what.data}", what.remedy))
    if isinstance(what, BaseException):
        return _of_text(str(what), type(what).__name__)
    if isinstance(what, str):
        return _of_text(what) if said_in(what) else _of_name(what)
    return _of_query(what)


def _of_query(query: StreamingQuery) -> Explanation:
    error = query.exception()
    if error is not None:
        return _of_text(str(error), type(error).__name__)
    name = query.name or query.id
    if query.isActive:
        return Explanation(f"Query {name} runs, and nothing has gone wrong in this run.")
    return Explanation(f"Query {name} has ended without an error: it was stopped, or has read all there was.")


def _of_text(text: str, kind: str | None = None) -> Explanation:
    said = said_in(text)
    if said is not None:
        return _explained(said)
    first = next((line for line in text.splitlines() if line.strip()), kind or "")
    return Explanation(
        f"This is not an error of pgonce{f', but a {kind}' if kind else ''}: Spark or the query's own code raised "
        f"it.\n\n{_wrapped(first)}\n\nA batch that failed by it was not written: rows and offsets are committed "
        "together, or not at all."
    )


def _of_name(name: str) -> Explanation:
    found = explanation(name) if name.strip() else None
    if found is None:
        return Explanation(f"There is no {name!r}. There is {', '.join(nearest(name))}.")
    return Explanation(found)


def _explained(said: Said) -> Explanation:
    parts = [f"[{said.code}]", _wrapped(said.sentences), f"What to do:\n{_wrapped(said.remedy)}"]
    entry = error_entries().get(said.code)
    if entry is not None:
        parts[0] += f" {entry.section}"
        parts.append(f"What it means in general:\n{_wrapped(entry.meaning)}")
    parts.append(f"More: pgonce explain {said.code}")
    return Explanation("\n\n".join(parts))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
