"""The table of docs/guarantees.md has one row for every query, and every code in it is described."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from support.guarantee_table import PROGRESS, QUERIES, SOURCES, TRIGGERS, WAYS, every_combination, rows_of
from support.public_interface import error_codes

PAGE = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text()


def test_every_query_has_one_row():
    """No combination is forgotten, and none is promised two things."""
    rows = Counter(combination for row in rows_of(PAGE) for combination in row.combinations())
    every = list(every_combination())
    assert len(every) == len(set(every)) == len(WAYS) * len(TRIGGERS) * len(PROGRESS) * len(QUERIES) * len(SOURCES) - 15
    assert {combination: rows[combination] for combination in every if rows[combination] != 1} == {}
    assert set(rows) == set(every)


def test_every_code_is_described():
    """Where pgonce refuses, docs/errors.md says more."""
    refusals = {row.says for row in rows_of(PAGE) if row.by == "pgonce"}
    assert refusals
    assert refusals - set(error_codes()) == set()


def test_a_user_who_is_refused_is_told_what_to_do_instead():
    """A refusal without a way out would be a dead end."""
    assert [row.number for row in rows_of(PAGE) if bool(row.instead) == (row.guarantee == "exactly-once")] == []
