"""``make matrix`` runs what the documents promise, and its table shows the outcomes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from matrix.combinations import JAVAS, NEWEST_SPARK, POSTGRES, PYTHONS, Combination, combinations, only
from matrix.page import BEGIN, END, rows

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "tests/matrix/outcomes.md").read_text(encoding="utf-8")
OLDEST = Combination("3.5", "14", "3.10")


class TestCombinations:
    def test_every_version_is_run(self):
        """Each PySpark and each Postgres at least once, and each Python and each Java on one PySpark."""
        run = combinations()
        assert {one.pyspark for one in run} == set(PYTHONS)
        assert {one.postgres for one in run} == set(POSTGRES)
        assert {one.python for one in run} == {python for pythons in PYTHONS.values() for python in pythons}
        assert {one.java for one in run} == {"17", *(java for javas in JAVAS.values() for java in javas)}

    def test_only_names_any_of_the_four_and_refuses_what_is_not_there(self):
        """ONLY names any of the four; a name or a version that is not there is refused with what there is."""
        assert only("pyspark=3.5 postgres=14") == [OLDEST]
        assert {one.postgres for one in only("pyspark=4.3 python=3.11 java=17")} == set(POSTGRES)
        with pytest.raises(ValueError, match="pyspark, postgres, python, java"):
            only("spark=3.5")
        with pytest.raises(ValueError, match="pyspark=4.3 postgres=14"):
            only("pyspark=2.4")


class TestPage:
    def test_the_page_has_what_was_run(self):
        """tests/matrix/outcomes.md has a row for every combination, and each says what came of it."""
        found = rows(PAGE.partition(BEGIN)[2].partition(END)[0])
        assert list(found) == combinations()

    def test_versions_are_said_once(self):
        """The page, the README and pyproject.toml name the same oldest and newest versions."""
        # Read as text, because tomllib came with Python 3.11.
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        oldest = min((python for pythons in PYTHONS.values() for python in pythons), key=lambda v: int(v[2:]))
        assert f'requires-python = ">={oldest}"' in project
        assert 'spark = ["pyspark>=3.5,<4.4"]' in project
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        assert re.search(rf"PySpark 4\.0 to {re.escape(NEWEST_SPARK)} \(in `foreachBatch` also 3\.5\)", readme)
        assert f"Postgres {POSTGRES[0]} to {POSTGRES[-1]}, Python {oldest} and newer" in readme
