"""
How many lines a user sees before the sentence of an error, by each way in, and that it is the last line.

Covers: `offsets_store.progress.listener`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.fixtures.driver import with_tests_on_path
from support.fixtures.spark import spark_settings

JOB = Path(__file__).parents[1] / "support" / "failing_job.py"
SENTENCE = "[CHECK_VIOLATION] Postgres refused the batch"
# In the log: what Spark says of its write, of the query, and the first line of its error. In a notebook: the frames of
# PySpark and py4j around awaitTermination, and for foreachBatch also those that PySpark takes out of the error's text.
MOST_IN_LOG = {"sink": 3, "writer": 1, "function": 1}
MOST_IN_NOTEBOOK = {"sink": 11, "writer": 19, "function": 22}


def before(lines):
    """The lines before the first one that has the sentence."""
    return lines[: next(number for number, line in enumerate(lines) if SENTENCE in line)]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["sink", *(pytest.param(way, marks=pytest.mark.thorough) for way in ("writer", "function"))]
)
def test_lines_before_the_sentence(start_driver, tmp_path, url, admin, observer, way):
    """In the log they are Spark's own, in a notebook Spark's frames; and it ends the log."""
    admin.execute("CREATE TABLE events (value bigint CHECK (value < 0))")
    settings = {**spark_settings(tmp_path, kafka=False), "spark.ui.showConsoleProgress": "false"}
    given = {"url": url, "checkpoint": str(tmp_path / "checkpoint"), "way": way, "spark": settings}
    driver = start_driver(JOB, json.dumps(given), env=with_tests_on_path())
    assert driver.wait() == 1, driver.output()
    printed = driver.output().partition("BEGINS\n")[2].replace("ENDS\n", "SHOWN\n")
    log, shown, last = (text.splitlines() for text in printed.split("SHOWN\n"))
    assert len([line for line in before(log) if " WARN " not in line]) <= MOST_IN_LOG[way]
    assert len(before(shown)) <= MOST_IN_NOTEBOOK[way]
    assert SENTENCE in last[-1]
    assert " Help: " in last[-1]
    # The program has ended at once, and what Spark said last is stored all the same.
    ends = observer.execute("SELECT ended_at IS NOT NULL, ended_by FROM pgonce.heartbeats").fetchall()
    assert ends == [(True, "CHECK_VIOLATION")]
