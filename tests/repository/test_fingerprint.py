"""The table of faults in tests/chaos/faults.md, and which changes make its fingerprint out of date."""

from __future__ import annotations

import ast

import pytest
from chaos.fingerprint import ROOT, modules_of_commits, of_trees
from chaos.proof import table_in

SOURCE = """
import logging
from pgonce.sink.errors import CommitError

_LIMIT = 50

def publish(rows):
    # All of them.
    if len(rows) > _LIMIT:
        logging.getLogger().info("many")
        raise CommitError("TOO_MANY", f"{len(rows)} rows.", "Nothing was written.", "Send fewer.")
    return execute("INSERT INTO t SELECT * FROM r")

class Writer:
    def __call__(self):
        return publish([])
"""


def of(*sources: str) -> str:
    """The fingerprint of modules with these texts."""
    return of_trees(map(ast.parse, sources))


def test_nothing_was_lost_or_doubled():
    """A table with lost or doubled rows is no proof."""
    row = next(line for line in table_in().splitlines() if line.startswith("| **all** |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert int(cells[1]) > 0
    assert cells[4:6] == ["0", "0"]


CHANGES = {
    "comment": (False, ("# All of them.", "# Every one.")),
    "docstring": (False, ("def publish(rows):", 'def publish(rows):\n    """Publish."""')),
    "module's docstring": (False, ("\nimport logging", '"""What is written?"""\nimport logging')),
    "words of an error": (False, ("Send fewer.", "Send fewer rows.")),
    "import": (False, ("from pgonce.sink.errors", "from sink.all_errors")),
    "layout": (False, ("    if len(rows) > _LIMIT:", "    if (len(rows)\n        > _LIMIT):")),
    "condition": (True, ("> _LIMIT", ">= _LIMIT")),
    "constant": (True, ("_LIMIT = 50", "_LIMIT = 60")),
    "SQL": (True, ("SELECT *", "SELECT DISTINCT *")),
    "an error's code": (True, ("TOO_MANY", "TOO_FEW")),
    "method": (True, ("return publish([])", "return None")),
}


@pytest.mark.parametrize(("counts", "change"), CHANGES.values(), ids=CHANGES)
def test_code_counts_and_prose_does_not(counts, change):
    """What might change a commit asks for another table; what changes none leaves it as it is."""
    changed = SOURCE.replace(*change)
    assert changed != SOURCE
    assert (of(changed) != of(SOURCE)) == counts


def test_modules_that_decide_or_commit_take_part_in_the_fingerprint():
    """All that decides and commits is in, what only looks is not."""
    names = {name.rpartition(".")[2] for name in modules_of_commits(ROOT)}
    assert {
        "decide",
        "one_try",
        "retrying",
        "write_batch",
        "upsert",
        "process",
        "reception",
        "batch_writer",
        "stager",
        "start",
        "statements",
    } <= names
    assert not {"main", "progress", "doctor"} & names
