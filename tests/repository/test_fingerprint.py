"""The table of faults in tests/chaos/faults.md, and which changes make its fingerprint out of date."""

from __future__ import annotations

import pytest
from chaos.fingerprint import plain
from chaos.proof import table_in

SOURCE = '''
_LIMIT = 50

def publish(rows):
    """Publish."""
    # All of them.
    return execute("INSERT INTO t SELECT * FROM r") if len(rows) > _LIMIT else None
'''


def test_nothing_was_lost_or_doubled():
    """A table with lost or doubled rows is no proof."""
    row = next(line for line in table_in().splitlines() if line.startswith("| **all** |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert int(cells[1]) > 0
    assert cells[4:6] == ["0", "0"]


@pytest.mark.parametrize(
    ("counts", "old", "new"),
    [
        (False, "# All of them.", "# Every one."),
        (False, '"""Publish."""', '"""Publish rows."""'),
        (True, "> _LIMIT", ">= _LIMIT"),
        (True, "SELECT *", "SELECT DISTINCT *"),
    ],
)
def test_code_counts_and_prose_does_not(counts, old, new):
    """What might change a commit asks for another table; what changes none leaves it as it is."""
    assert old in SOURCE
    assert (plain(SOURCE.replace(old, new), ".py") != plain(SOURCE, ".py")) == counts
