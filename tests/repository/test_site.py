"""
The site is built without a warning, has all that the code has, and can be read on a phone and without a network.

Covers: ``website/``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from check_site import faults
from support.fixtures.browser import DESKTOP, PHONE, opened_pages
from support.fixtures.skips import unavailable
from support.tables_page import ledger_columns

import pgonce
from pgonce.cli.explain import error_entries
from pgonce.cli.main import app
from pgonce.sink.options.definitions import OPTIONS

ROOT = Path(__file__).parents[2]
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site, and what its build said."""
    folder = tmp_path_factory.mktemp("site") / "site"
    path = os.pathsep.join([str(ROOT / "website"), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-m", "build_site", str(folder)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.fixture
def open_page(browser):
    """A function that opens a page; a message of the console is trouble."""
    with opened_pages(browser, lambda _: True) as open_page:
        yield open_page


def names_in(site):
    """The pages, without those that Sphinx makes and those that show a file."""
    found = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    return sorted(name for name in found - {"genindex.html", "search.html"} if not name.startswith("files/"))


def ids_in(site, name):
    """The places to which a link can lead."""
    return set(re.findall(r'\bid="([^"]+)"', (site / name).read_text()))


def test_the_texts_for_programs_have_each_page(site):
    """llms.txt has a line for each, and llms-full.txt each page's text."""
    lines = (site / "llms.txt").read_text()
    assert sorted(re.findall(r"^- \[.+\]\((.+\.html)\): \S", lines, re.MULTILINE)) == names_in(site)
    whole = (site / "llms-full.txt").read_text()
    assert re.findall(r"^<!-- (.+\.html) -->$", whole, re.MULTILINE) == re.findall(r"\((\S+\.html)\):", lines)
    assert "start_real_time(" in whole.partition("<!-- reference/python.html -->")[2]


def test_the_reference_has_all_that_the_code_has(site):
    """Each option, error, command, public name, and table of the ledger has its place."""
    options = {option.name for argument, option in OPTIONS.items() if argument != "kafka_options"}
    assert options <= ids_in(site, "options.html")
    assert error_entries().keys() <= ids_in(site, "errors.html")
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert commands <= ids_in(site, "reference/commands.html")
    assert {f"pgonce.{name}" for name in pgonce.__all__} <= ids_in(site, "reference/python.html")
    tables = {f"pgonce-{name}".replace("_", "-") for name in ledger_columns()}
    assert tables <= ids_in(site, "tables.html")
    for name in ("options.html", "errors.html", "tables.html", "reference/commands.html", "reference/python.html"):
        assert "Added in version 0.1.0" in (site / name).read_text()


def test_what_people_look_for_is_found_first(site):
    """The site's own search, in another JavaScript than a browser's, leads to the section that answers."""
    node = shutil.which("node")
    if node is None:
        unavailable("Node.js is missing: apt-get install nodejs")
    answers = {
        "license": "start/for-a-platform-team#the-package",
        "exactly once": "guarantees#what-is-guaranteed",
        "Duplicate": "guarantees#what-is-guaranteed",
        "lag": "watching#lag",
        "TYPE_MISMATCH": "errors#TYPE_MISMATCH",
        "onConflict": "options#onConflict",
    }
    command = [node, ROOT / "tests" / "support" / "search_site.js", site, *answers]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = dict(zip(answers, map(json.loads, done.stdout.splitlines()), strict=True))
    assert {query: places[0] for query, places in found.items()} == answers


def test_no_page_scrolls_sideways_or_asks_another_host(site, open_page):
    """On a phone and on a desktop, in light and dark; what is wider scrolls in itself."""
    for viewport in (PHONE, DESKTOP):
        page = open_page((site / "index.html").as_uri(), viewport)
        asked = []
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        wide = {}
        for name in names_in(site):
            page.goto((site / name).as_uri())
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                if page.evaluate(SIDEWAYS) > 0:
                    wide[name] = scheme
        assert wide == {}
        assert [address for address in asked if not address.startswith(("file:", "data:"))] == []


def test_what_is_wrong_with_a_page_is_found(tmp_path):
    """A page that loads from another host, links to nothing, or that no link leads to."""
    (tmp_path / "index.html").write_text(
        '<h1 id="here"></h1><a href="#here">1</a><a href="#there">2</a><a href="gone.html">3</a>'
        '<a href="https://example.org">4</a><script src="https://example.org/x.js"></script><img src="gone.png">'
    )
    (tmp_path / "alone.html").write_text('<a href="index.html">back</a>')
    (tmp_path / "site.css").write_text("@font-face { src: url(https://example.org/font) }")
    assert list(faults(tmp_path)) == [
        "index.html loads https://example.org/x.js",
        "index.html loads gone.png, which is missing",
        "index.html links to #there, which has no such place",
        "index.html links to gone.html, which is missing",
        "site.css loads from another host",
        "alone.html cannot be reached from index.html",
    ]
