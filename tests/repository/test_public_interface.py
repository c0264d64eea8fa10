"""
tests/repository/public_interface.txt is the list of what users may rely on, as the code has it.

`make release-check` refuses a change of it that CHANGELOG.md does not mention; test_release.py tests that.
"""

from __future__ import annotations

from support.public_interface import FILE, page


def test_it_is_up_to_date():
    """`make docs` writes it after a change: look at the difference, and tell users of it in CHANGELOG.md."""
    assert FILE.read_text() == page()
