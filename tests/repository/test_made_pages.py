"""
What `make docs` writes is what the code says: the manual page, which is installed, the ledger's tables, what is public.

`make release-check` refuses a change of what is public that CHANGELOG.md does not mention; test_release.py tests that.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support import manual_page, public_interface, tables_page
from support.manual_page import PAGE

from pgonce.cli.terms import EXIT_CODES


@pytest.mark.parametrize(
    ("file", "made"),
    [
        (PAGE, manual_page.page),
        (public_interface.FILE, public_interface.page),
        (tables_page.PAGE, tables_page.page),
    ],
    ids=["pgonce.1", "public_interface.txt", "tables.md"],
)
def test_it_is_up_to_date(file, made):
    """`make docs` writes it after a change: look at the difference, and tell users of what they may rely on."""
    assert file.read_text() == made()


def test_the_documents_have_the_same_exit_codes():
    """docs/watching.md has one table of them."""
    lines = (PAGE.parent / "watching.md").read_text().splitlines()
    rows = [line.split("|")[1].strip() for line in lines[lines.index("## Exit codes") :] if line.startswith("| ")]
    assert rows[1:] == [str(int(code)) for code in EXIT_CODES]


def test_the_wheel_brings_it():
    """`man pgonce` finds it where the environment's share/man is searched."""
    installed = Path(sys.prefix) / "share" / "man" / "man1" / "pgonce.1"
    assert installed.read_text() == PAGE.read_text()
