"""
How many lines a user sees before the sentence of an error, by each way in.

Covers: `offsets_store.progress.listener`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.fixtures.driver import with_tests_on_path
from support.fixtures.spark import spark_settings

JOB = Path(__file__).parents[1] / "support" / "failing_job.py"
pytestmark = [pytest.mark.spark, pytest.mark.slow]


def seen(start_driver, tmp_path, url, way, ends, *, watches=False):
    """All that a job has printed since it started its query."""
    given = {
        "url": url,
        "checkpoint": str(tmp_path / "checkpoint"),
        "way": way,
        "watches": watches,
        "ends": ends,
        "spark": spark_settings(tmp_path, kafka=False),
    }
    driver = start_driver(JOB, json.dumps(given), env=with_tests_on_path())
    assert driver.wait() == (1 if ends == "script" else 0), driver.output()
    return driver.output().rpartition("BEGINS\n")[2].splitlines()
