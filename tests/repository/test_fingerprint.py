"""The table of faults in docs/guarantees.md, and which changes make its fingerprint out of date."""

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


@pytest.mark.parametrize(
    "changed",
    [
        SOURCE.replace("# All of them.", "# Every one."),
        SOURCE.replace("def publish(rows):", 'def publish(rows):\n    """Publish."""'),
        '"""What is written?"""' + SOURCE,
        SOURCE.replace("Send fewer.", "Send fewer rows.").replace('rows."', 'rows are too many."'),
        SOURCE.replace("from pgonce.sink.errors", "from sink.all_errors"),
        SOURCE.replace("    if len(rows) > _LIMIT:", "    if (len(rows)\n        > _LIMIT):"),
    ],
    ids=["comment", "docstring", "module's docstring", "words of an error", "import", "layout"],
)
def test_prose_does_not_count(changed):
    """What changes no commit leaves the table as it is."""
    assert changed != SOURCE
    assert of(changed) == of(SOURCE)


@pytest.mark.parametrize(
    "changed",
    [
        SOURCE.replace("> _LIMIT", ">= _LIMIT"),
        SOURCE.replace("_LIMIT = 50", "_LIMIT = 60"),
        SOURCE.replace("SELECT *", "SELECT DISTINCT *"),
        SOURCE.replace("TOO_MANY", "TOO_FEW"),
        SOURCE.replace("return publish([])", "return None"),
    ],
    ids=["condition", "constant", "SQL", "an error's code", "method"],
)
def test_code_counts(changed):
    """What might change a commit asks for another table."""
    assert changed != SOURCE
    assert of(changed) != of(SOURCE)


def test_moving_does_not_count():
    """A function that moves to another module is the same function."""
    function, rest = SOURCE[: SOURCE.index("class ")], SOURCE[SOURCE.index("class ") :]
    assert of(function, "from other import publish\n" + rest) == of(SOURCE)


def test_what_takes_part():
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
        "early_commit",
        "stager",
    } <= names
    assert not {"main", "listener", "doctor"} & names
