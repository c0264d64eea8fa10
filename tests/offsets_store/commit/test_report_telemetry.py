"""What OpenTelemetry is told of commits, as it arrives at a collector."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from support.batches import make_batch
from support.collector import attributes, collecting
from support.committed_rows import appending, ids, settings
from support.fixtures.driver import with_tests_on_path

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.verdict.decide import Verdict

PROGRAM = Path(__file__).parents[2] / "support" / "traced_commits.py"
COMMON = {"db.system.name": "postgresql", "db.operation.name": "pgonce.commit"}
QUERY = {"pgonce.query": "q1", "pgonce.query_id": "q1"}


@pytest.fixture
def collector():
    """A collector that listens."""
    with collecting() as listening:
        yield listening


def run(collector, *urls, **environment):
    """Run the program that commits, in this environment."""
    told = {**os.environ, **with_tests_on_path("testbed"), **collector.environment(), **environment}
    subprocess.run([sys.executable, str(PROGRAM), *urls], check=True, env=told)


@pytest.mark.usefixtures("events")
def test_each_commit_is_a_span(url, proxy, admin, collector):
    """A span has the names of the conventions, what became of the batch, and its caller's span as the parent."""
    proxy.cut_after_commit(touching="events")
    run(collector, url, proxy.url)
    assert proxy.hits["cut_after_commit"] == 1
    assert ids(admin) == [1, 2, 3, 4]
    (own,) = collector.spans("program")
    spans = collector.spans("pgonce")
    assert {span.kind for span in spans} == {Span.SPAN_KIND_CLIENT}
    first, *others = spans
    assert (first.trace_id, first.parent_span_id) == (own.trace_id, own.span_id)
    assert not any(span.parent_span_id for span in others)

    where = {**COMMON, "db.namespace": admin.info.dbname}
    into = {**where, "db.collection.name": "public.events"}
    sink = {"pgonce.sink": "public.events"}
    done = {**sink, "pgonce.rows": 0}
    told = [(span.name, attributes(span.attributes)) for span in spans]
    named, unnamed = "pgonce.commit public.events", f"pgonce.commit {admin.info.dbname}"
    by_copy = {**into, **done, "pgonce.transport": "inline"}
    assert told == [
        (
            named,
            {
                **by_copy,
                **QUERY,
                "pgonce.query": "orders",
                "pgonce.batch_id": 0,
                "pgonce.verdict": "NEW",
                "pgonce.rows": 2,
            },
        ),
        (unnamed, {**where, **done, **QUERY, "pgonce.batch_id": 0, "pgonce.verdict": "REPLAY"}),
        (unnamed, {**where, **sink, **QUERY, "pgonce.batch_id": 7, "error.type": "GAP"}),
        (
            unnamed,
            {
                **where,
                **sink,
                **QUERY,
                "pgonce.batch_id": 1,
                "error.type": "VALUE_NOT_STORABLE",
                "db.response.status_code": "22P02",
            },
        ),
        (unnamed, {**where, **sink, **QUERY, "pgonce.batch_id": 1}),
        (named, {**by_copy, **QUERY, "pgonce.batch_id": 1, "pgonce.verdict": "LANDED", "pgonce.rows": 1}),
        (named, {**by_copy, "pgonce.batch_key": "monday", "pgonce.verdict": "PUBLISHED", "pgonce.rows": 1}),
    ]
    # What is put off to a second try has not failed.
    codes = [span.status.message for span in spans if span.status.code == Status.STATUS_CODE_ERROR]
    assert codes == ["GAP", "VALUE_NOT_STORABLE"]

    counted = collector.durations("db.client.operation.duration")
    assert sorted(
        (point.get("error.type", ""), point.get("db.collection.name", ""), count) for point, count in counted
    ) == [("", "", 2), ("", "public.events", 3), ("GAP", "", 1), ("VALUE_NOT_STORABLE", "", 1)]
    assert "sécrèt".encode() not in collector.raw
    assert not any(part in collector.raw for part in (b"postgresql://", b"password", admin.info.host.encode()))


@pytest.mark.usefixtures("events")
def test_no_error_of_opentelemetry_reaches_a_commit(url, admin, monkeypatch):
    """A batch is published even if all that it would be told to is broken."""
    for module in ("opentelemetry.trace", "opentelemetry.metrics"):
        monkeypatch.setitem(sys.modules, module, object())
    assert commit_batch(settings(url), make_batch(0), appending(1)) is Verdict.NEW
    assert ids(admin) == [1]


def test_a_process_without_opentelemetry_does_not_import_it():
    """It is installed here, and what commits leaves it alone; tests/repository/test_imports.py shows it in Spark."""
    code = (
        "import sys, pgonce.offsets_store.commit.batch_job\n"
        "print([name for name in sys.modules if 'telemetry' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
