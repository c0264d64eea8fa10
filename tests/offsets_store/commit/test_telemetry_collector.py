"""What a real OpenTelemetry Collector receives of commits, by OTLP over HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from maven import MissingTool
from otel_collector import OtelCollector
from support.fixtures.driver import with_tests_on_path
from support.fixtures.skips import unavailable

PROGRAM = Path(__file__).parents[2] / "support" / "traced_commits.py"


@pytest.fixture
def collector():
    """The collector, with one receiver and a file."""
    try:
        made = OtelCollector()
    except MissingTool as error:
        unavailable(str(error))
    with made:
        yield made


def attributes(of):
    """Attributes as a dictionary; JSON has whole numbers as texts."""
    return {each["key"]: next(iter(each["value"].values())) for each in of}


@pytest.mark.usefixtures("events")
def test_a_commits_span_is_the_child_of_its_callers(url, proxy, collector):
    """The collector has both, and the commit's says what became of which batch; the histogram is there as well."""
    proxy.cut_after_commit(touching="events")
    told = {
        **os.environ,
        **with_tests_on_path("testbed"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.http}",
        "OTEL_SERVICE_NAME": "orders job",
    }
    subprocess.run([sys.executable, str(PROGRAM), url, proxy.url], check=True, env=told)
    collector.stop()
    spans = {}
    for resource in collector.told("resourceSpans"):
        assert attributes(resource["resource"]["attributes"])["service.name"] == "orders job"
        for scoped in resource["scopeSpans"]:
            spans.setdefault(scoped["scope"]["name"], []).extend(scoped["spans"])
    (own,) = spans["program"]
    first, *others = sorted(spans["pgonce"], key=lambda span: int(span["startTimeUnixNano"]))
    assert (first["traceId"], first["parentSpanId"]) == (own["traceId"], own["spanId"])
    assert not any(span.get("parentSpanId") for span in others)
    said = attributes(first["attributes"])
    assert (said["db.system.name"], said["db.operation.name"]) == ("postgresql", "pgonce.commit")
    assert (said["pgonce.query"], said["pgonce.batch_id"], said["pgonce.verdict"]) == ("orders", "0", "NEW")
    assert len(others) == 6
    metrics = {
        metric["name"]
        for resource in collector.told("resourceMetrics")
        for scoped in resource["scopeMetrics"]
        for metric in scoped["metrics"]
    }
    assert "db.client.operation.duration" in metrics
