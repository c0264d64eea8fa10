"""
The dashboard and the alerts of ``examples/monitoring`` ask for metrics that there are, and promtool runs the alerts.

Covers: pgonce.serve.metrics.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.fixtures.skips import unavailable

from pgonce.offsets_store.status.states import STATES

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "examples" / "monitoring"
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
PANELS = DASHBOARD["panels"]
RULES = (MONITORING / "alerts.yml").read_text()
ALERTS = re.findall(r"^  - alert: (\w+)$", RULES, re.MULTILINE)


class TestPromtool:
    @pytest.mark.parametrize(
        "arguments",
        [
            ["check", "config", "prometheus.yml"],
            ["check", "rules", "--lint=all", "--lint-fatal", "alerts.yml"],
            ["test", "rules", "alerts_test.yml"],
        ],
        ids=lambda arguments: arguments[1],
    )
    def test_it_finds_nothing_wrong(self, arguments):
        """The configuration, the rules, and when they fire."""
        program = shutil.which("promtool")
        if program is None:
            unavailable("promtool is missing: apt-get install prometheus")
        done = subprocess.run([program, *arguments], cwd=MONITORING, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_each_alert_is_seen_to_fire_and_not_to(self):
        """The rules' own tests have both for each of them."""
        text = (MONITORING / "alerts_test.yml").read_text()
        assert len(ALERTS) == len(set(ALERTS)) > 10
        rests = r"^  - \{alertname: (\w+), eval_time: \w+, exp_alerts: \[\]\}$"
        fires = r"^  - alertname: (\w+)\n    eval_time: \w+\n    exp_alerts:\n    - exp_labels"
        for one in (rests, fires):
            assert set(re.findall(one, text, re.MULTILINE)) == {*ALERTS}


def test_each_metric_that_is_asked_for_is_one_that_we_have():
    """Its name and its labels are in the public interface, which is made from what `pgonce serve` writes."""
    lines = (ROOT / "tests" / "repository" / "public_interface.txt").read_text().splitlines()
    words = [line.split() for line in lines if line.startswith(("pgonce_", "kafka_")) and "." not in line]
    labels = {name: {*others, "instance", "job", "le"} for name, _, *others in words}
    asked = [target["expr"] for panel in PANELS for target in panel["targets"]] + [RULES]
    found = [match for text in asked for match in re.findall(r"\b((?:pgonce|kafka)_\w+)(?:\{([^}]*)\})?", text)]
    names = {re.sub("_bucket$", "", name) for name, _ in found}
    assert {"pgonce_rows_total", "pgonce_state", "pgonce_commit_seconds"} <= names <= labels.keys()
    for name, selector in found:
        assert {*re.findall(r"(\w+)\s*[=!]", selector)} <= labels[re.sub("_bucket$", "", name)]


def test_colours_are_of_what_is_there():
    """Each state has its colour in graph and table, and what is formatted is a column."""
    graph = next(panel for panel in PANELS if panel["title"] == "Queries by state")
    assert [one["matcher"]["options"] for one in graph["fieldConfig"]["overrides"]] == list(STATES)
    table = next(panel for panel in PANELS if panel["type"] == "table")
    renamed = table["transformations"][1]["options"]["renameByName"]
    formatted = {one["matcher"]["options"]: one["properties"] for one in table["fieldConfig"]["overrides"]}
    assert formatted.keys() <= set(renamed.values())
    assert list(formatted["State"][0]["value"][0]["options"]) == list(STATES)
