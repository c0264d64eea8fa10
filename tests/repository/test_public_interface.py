"""
tests/repository/public_interface.txt is the list of what users may rely on, as the code has it.

`make release-check` refuses a change of it that CHANGELOG.md does not mention; test_release.py tests that.
"""

from __future__ import annotations

import re

import pytest
from support.public_interface import FILE, page

import pgonce
from pgonce.cli.terms import EXIT_CODES
from pgonce.sink.options.definitions import OPTIONS

PARTS = dict(re.findall(r"^# (.+)\n\n((?:.+\n)+)", FILE.read_text(), re.MULTILINE))


def test_it_is_up_to_date():
    """`make docs` writes it after a change: look at the difference, and tell users of it in CHANGELOG.md."""
    assert FILE.read_text() == page()


@pytest.mark.parametrize("heading", PARTS)
def test_each_thing_stands_there_once(heading):
    """A line that stands twice would hide that one of the two things has gone."""
    lines = PARTS[heading].splitlines()
    assert len(lines) == len({*lines})


def test_it_has_every_name_option_and_exit_code():
    """The list is made from what is exported, from the table of options, and from the commands' own exit codes."""
    names = PARTS["Names of the package pgonce"]
    assert [name for name in pgonce.__all__ if not re.search(rf"^(class )?{name}\b", names, re.MULTILINE)] == []
    assert len(PARTS['Options of format("pgonce") and arguments'].splitlines()) == len(OPTIONS)
    assert len(PARTS["Exit codes"].splitlines()) == len(EXIT_CODES)


def test_metrics_have_their_labels():
    """A label that goes breaks dashboards as a name does."""
    assert "pgonce_failures_total counter code query query_id sink\n" in PARTS["Metrics of pgonce serve"]
