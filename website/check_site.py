"""
Check the pages of a built site: links lead somewhere, nothing is loaded from another host, and all can be reached.

Pure, over the files of a folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches by itself.
_LOADED = {"audio", "embed", "iframe", "img", "link", "object", "script", "source", "track", "video"}
_MADE_BY_SPHINX = {"genindex.html", "search.html", "py-modindex.html"}


class _Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        for name in ("href", "src", "srcset", "data", "poster", "xlink:href"):
            if name in given and tag in _LOADED:
                self.loaded.append(given[name])
            elif name == "href" and name in given and tag == "a":
                self.links.append(given[name])


def faults(site: Path) -> Iterator[str]:
    """What is wrong with the pages in this folder, one line for each fault."""
    read = {path.relative_to(site).as_posix(): _Page(path) for path in sorted(site.rglob("*.html"))}
    reached = {"index.html"}
    waiting = ["index.html"]
    for name, page in read.items():
        for address in page.loaded:
            if urlsplit(address).netloc or urlsplit(address).scheme not in {"", "data"}:
                yield f"{name} loads {address}"
            elif not address.startswith("data:") and not _target(site, name, address).exists():
                yield f"{name} loads {address}, which is missing"
        for address in page.links:
            where = urlsplit(address)
            if where.scheme or where.netloc:
                continue
            target = _target(site, name, address)
            if not target.exists():
                yield f"{name} links to {address}, which is missing"
            elif where.fragment and unquote(where.fragment) not in read[target.relative_to(site).as_posix()].ids:
                yield f"{name} links to {address}, which has no such place"
    for path in sorted(site.rglob("*.css")):
        if any(mark in path.read_text() for mark in ("url(http", "url(//", "@import")):
            yield f"{path.relative_to(site).as_posix()} loads from another host"
    while waiting:
        name = waiting.pop()
        for address in read[name].links:
            where = urlsplit(address)
            found = _target(site, name, address)
            if not where.scheme and not where.netloc and found.suffix == ".html" and found.exists():
                further = found.relative_to(site).as_posix()
                if further not in reached:
                    reached.add(further)
                    waiting.append(further)
    for name in sorted(read.keys() - reached - _MADE_BY_SPHINX):
        yield f"{name} cannot be reached from index.html"


def _target(site: Path, name: str, address: str) -> Path:
    path = unquote(urlsplit(address).path)
    return ((site / name).parent / path).resolve() if path else (site / name).resolve()
