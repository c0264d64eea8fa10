"""
Lay the site's sources out in one folder for Sphinx: pages, pictures, and a page for each file that is linked.

Runs in ``make site``. Invariant: the repository's files are only read, and what a link means on GitHub it also means on
the site.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from generated import generated_pages

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# Pages that only the site has.
OWN = Path(__file__).resolve().parent / "pages"
# Pages that stand elsewhere in the repository, each with its place on the site.
ELSEWHERE = {
    "README.md": "readme.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SUPPORT.md": "support.md",
    "SECURITY.md": "security-policy.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/NOTES.md": "benchmarks-notes.md",
    "examples/README.md": "examples.md",
    "testbed/README.md": "testbed.md",
    "tests/chaos/crashes.md": "crashes.md",
    "tests/chaos/faults.md": "faults.md",
    "tests/matrix/outcomes.md": "outcomes.md",
}
_FENCED = re.compile(r"(^ *```.*?^ *```[^\n]*$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
_LANGUAGES = {".json": "json", ".py": "python", ".sql": "sql", ".svg": "xml", ".yml": "yaml"}
# What stands at the end of each page of the reference; what comes later says so in its own entry.
_SINCE = "```{versionadded} 0.1.0\nEverything on this page, if its entry names no later version.\n```"
# Titles that are shorter in the site's menu, or that another page has already.
_TITLES = {
    "readme.md": "Overview",
    "crashes.md": "Crashes and their tests",
    "testbed.md": "The testbed",
    "python.md": "Python, by purpose",
    "types.md": "Types",
}
# On GitHub a link: the site shows the brackets. A section without lines says nothing.
_VERSION = re.compile(r"^## \[([^]]+)\]", re.MULTILINE)
_EMPTY_SECTION = re.compile(r"^## \[Unreleased\]\n+(?=## )", re.MULTILINE)
_REFERENCE = {"errors.md", "ledger.md", "options.md", "python.md", "tables.md", "types.md"}
# The first cell of a row that is not empty: an error's code, an option, or an argument.
_NAMED_ROW = re.compile(r"^(\| (?: \| )?)`(\w+)` \|", re.MULTILINE)
_NAMED_ROWS = {"errors.md", "options.md"}

# What else is in the folder of a README.md; GitHub shows a folder's list by itself.
_OTHERS = "\n```{toctree}\n:hidden:\n:glob:\n\n*\n%s```\n"


def pages() -> dict[Path, str]:
    """Each Markdown page of the repository, with its place in the staged folder."""
    found = {path: path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))}
    found |= {path: path.relative_to(OWN).as_posix() for path in sorted(OWN.rglob("*.md"))}
    found |= {ROOT / path: place for path, place in ELSEWHERE.items()}
    return {path: re.sub(r"README\.md$", "index.md", place) for path, place in found.items()}


class Staged:
    """The sources of the site, by their places."""

    def __init__(self) -> None:
        self._places = pages()
        self._shown: dict[Path, str] = {}
        self.files: dict[str, bytes] = {}
        for path, place in self._places.items():
            self.files[place] = self._page(path, place).encode()
        for place, text in generated_pages().items():
            self.files[place] = _with_version(text).encode()
        for path, place in self._shown.items():
            self.files[place] = _shown_file(path).encode()

    def _page(self, path: Path, place: str) -> str:
        text = path.read_text()
        parts = _FENCED.split(text)
        # Code stands at the odd places.
        parts[::2] = [_LINK.sub(lambda link: self._link(path, place, link), part) for part in parts[::2]]
        text = "".join(parts)
        if path.name == "README.md" and path.is_relative_to(DOCS):
            inner = sorted(path.parent.glob("*/README.md"))
            text += _OTHERS % "".join(f"{readme.parent.name}/index\n" for readme in inner)
        if place in _TITLES:
            text = f"# {_TITLES[place]}\n{text.partition(chr(10))[2]}"
        if place == "changelog.md":
            text = _VERSION.sub(r"## \1", _EMPTY_SECTION.sub("", text))
        if place in _NAMED_ROWS:
            text = _NAMED_ROW.sub(r'\1<span id="\2"></span>`\2` |', text)
        return _with_version(text) if place in _REFERENCE else text

    def _link(self, path: Path, place: str, link: re.Match[str]) -> str:
        if re.match(r"[a-z]+:", link[1]):
            return link[0]
        # A page of the site may link to what is generated, or to a page by its place on the site.
        target = (path.parent / link[1]).resolve()
        if path.is_relative_to(OWN) and not target.exists():
            return link[0]
        if not target.exists():
            raise SystemExit(f"{path.relative_to(ROOT)} links to {link[1]}, which is missing")
        return os.path.relpath(self._place_of(target), Path(place).parent) + (link[2] or "")

    def _place_of(self, target: Path) -> str:
        if target.is_dir():
            target = next((path for path in self._indexes_of(target) if path in self._places), target)
        if target in self._places:
            return self._places[target]
        if target.suffix in {".png", ".svg"}:
            place = target.relative_to(DOCS).as_posix()
            self.files[place] = target.read_bytes()
            return place
        return self._shown.setdefault(target, f"files/{target.relative_to(ROOT).as_posix().lstrip('.')}.md")

    @staticmethod
    def _indexes_of(folder: Path) -> tuple[Path, ...]:
        own = OWN / folder.relative_to(DOCS) if folder.is_relative_to(DOCS) else folder
        return folder / "README.md", folder / "index.md", own / "index.md"

    def write(self, folder: Path) -> None:
        """Write them into an empty folder."""
        for place, content in self.files.items():
            path = folder / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def _with_version(text: str) -> str:
    return f"{text.rstrip()}\n\n{_SINCE}\n"


def _shown_file(path: Path) -> str:
    """A page that shows a file, or lists a folder, for links to what is no page."""
    head = f"---\norphan: true\nnosearch: true\n---\n# `{path.relative_to(ROOT).as_posix()}`\n\n"
    if path.is_dir():
        return head + "This folder of the repository has\n\n" + "".join(f"- `{name}`\n" for name in _listed(path))
    return f"{head}````````{_LANGUAGES.get(path.suffix, 'text')}\n{path.read_text().rstrip()}\n````````\n"


def _listed(folder: Path) -> Iterator[str]:
    return (path.name for path in sorted(folder.iterdir()))
