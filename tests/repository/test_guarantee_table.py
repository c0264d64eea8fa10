"""The table of docs/guarantees.md has one row for every query, and every code in it is described."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from support.guarantee_table import PROGRESS, QUERIES, SOURCES, TRIGGERS, WAYS, every_combination, rows_of

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "guarantees.md").read_text()
HEAD = """\
| Way in | Trigger | Asynchronous progress | Query | Source | Guarantee | Refused by | Instead |
|---|---|---|---|---|---|---|---|
"""


def test_every_query_has_one_row():
    """No combination is forgotten, and none is promised two things."""
    rows = Counter(combination for row in rows_of(PAGE) for combination in row.combinations())
    every = list(every_combination())
    assert len(every) == len(set(every)) == len(WAYS) * len(TRIGGERS) * len(PROGRESS) * len(QUERIES) * len(SOURCES) - 15
    assert {combination: rows[combination] for combination in every if rows[combination] != 1} == {}
    assert set(rows) == set(every)


def test_every_code_is_described():
    """Where pgonce refuses, docs/errors.md says more."""
    described = re.findall(r"^\| `([A-Z0-9_]+)` \|", (DOCS / "errors.md").read_text(), re.MULTILINE)
    refusals = {row.says for row in rows_of(PAGE) if row.by == "pgonce"}
    assert refusals
    assert refusals - set(described) == set()


def test_a_user_who_is_refused_is_told_what_to_do_instead():
    """A refusal without a way out would be a dead end."""
    assert [row.number for row in rows_of(PAGE) if bool(row.instead) == (row.guarantee == "exactly-once")] == []


def test_a_row_speaks_of_every_value_that_it_names():
    """Commas, *any*, "on" and "stateful" are multiplied out."""
    (row,) = rows_of(
        HEAD + "| *any* | once, real time | off | stateless | Kafka, files | exactly-once | - | |\n\n| no row |"
    )
    found = set(row.combinations())
    assert len(found) == 3 * 2 * 1 * 1 * 2
    assert (WAYS[2], "real time", "off", "stateless", "files") in found
    (row,) = rows_of(HEAD + "| *any* | once | on | stateful | Kafka | refused | Spark: `NO` | off |")
    assert row.cells[2:4] == (PROGRESS[1:], QUERIES[1:])


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("| *any* | hourly | off | stateless | Kafka | exactly-once | - | |", "names 'hourly'"),
        ("| *any* | once, once | off | stateless | Kafka | exactly-once | - | |", "names 'once, once'"),
        ("| *any* | once | off | stateless | Kafka | at least once | - | |", "promises 'at least once'"),
        ("| *any* | once | off | stateless | Kafka | refused | - | |", "nobody who refuses"),
        ("| *any* | once | off | stateless | Kafka | exactly-once | Spark: `NO` | |", "Spark who refuses"),
        ("| *any* | once | off | stateless | Kafka | refused | somebody | |", "does not say who refuses"),
        ("| *any* | once | off | stateless | Kafka | refused |", "has 6 cells"),
    ],
)
def test_a_cell_that_means_nothing_is_an_error(row, complaint):
    """A slip of the pen fails, and is not passed over."""
    with pytest.raises(ValueError, match=complaint):
        rows_of(HEAD + row)


@pytest.mark.parametrize("page", ["", HEAD + "\n" + HEAD], ids=["none", "two"])
def test_there_is_one_table(page):
    """A page without the table would promise nothing, and pass."""
    with pytest.raises(ValueError, match="tables with the columns"):
        rows_of(page)
