"""The manual page is that of the commands, and is installed with them."""

from __future__ import annotations

import sys
from pathlib import Path

from support.manual_page import PAGE, page

from pgonce.cli.terms import EXIT_CODES


def test_it_is_up_to_date():
    """`make docs` writes it after a change of a command."""
    assert PAGE.read_text() == page()


def test_the_documents_have_the_same_exit_codes():
    """docs/watching.md has one table of them."""
    lines = (PAGE.parent / "watching.md").read_text().splitlines()
    rows = [line.split("|")[1].strip() for line in lines[lines.index("## Exit codes") :] if line.startswith("| ")]
    assert rows[1:] == [str(int(code)) for code in EXIT_CODES]


def test_the_wheel_brings_it():
    """`man pgonce` finds it where the environment's share/man is searched."""
    installed = Path(sys.prefix) / "share" / "man" / "man1" / "pgonce.1"
    assert installed.read_text() == PAGE.read_text()
