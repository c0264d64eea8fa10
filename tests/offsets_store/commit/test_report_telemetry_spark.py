"""
What is seen of a query's batches from outside: traces, the log, and Spark's own page, for each way in.

Covers: offsets_store.commit.report, sink.foreach_batch.jvm_rows, sink.identity.from_running_query.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from opentelemetry.instrumentation import auto_instrumentation
from support.collector import attributes, collecting
from support.fixtures.driver import with_tests_on_path
from support.fixtures.spark import spark_settings

JOB = Path(__file__).parents[2] / "support" / "watched_job.py"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.slow
@pytest.mark.spark
def test_batches_are_seen_by_every_way_in(start_driver, admin, url, tmp_path):
    """
    A commit is a span and a line of the log, in the driver and in Spark's workers; Spark's page names the batch,
    and the log has the page of each query.

    A caller's own span is the parent; otherwise it is the one in the environment, which workers inherit.
    """
    for table in ('"<i>events"', "by_function", "by_format", "by_job"):
        admin.execute(f"CREATE TABLE {table} (id bigint)".encode())
    page = {"spark.ui.enabled": "true", "spark.ui.port": "0"}
    told = {"url": url, "settings": {**spark_settings(tmp_path, kafka=False), **page}, "folder": str(tmp_path)}
    paths = with_tests_on_path()["PYTHONPATH"]
    with collecting() as collector:
        environment = {
            **collector.environment(),
            # As opentelemetry-instrument does for the program that it runs.
            "PYTHONPATH": os.pathsep.join([str(Path(auto_instrumentation.__file__).parent), paths]),
            "TRACEPARENT": f"00-{TRACE}-{SPAN}-01",
            "PGONCE_LOG": "json",
        }
        driver = start_driver(JOB, json.dumps(told), env=environment)
        driver.wait_for_output("JOBS")
        driver.wait_for(lambda: len(collector.spans("pgonce")) >= 4, "the collector had four commits")
        spans = {attributes(span.attributes)["pgonce.sink"]: span for span in collector.spans("pgonce")}
        (own,) = collector.spans("program")
    sinks = ['public."<i>events"', "by function", "public.by_format", "public.by_job"]
    assert list(spans) == sinks
    assert spans[sinks[0]].parent_span_id == own.span_id
    parents = {(spans[sink].trace_id.hex(), spans[sink].parent_span_id.hex()) for sink in sinks[1:]}
    assert parents == {(TRACE, SPAN)}

    lines = [json.loads(line) for line in driver.output().splitlines() if line.startswith('{"time"')]
    committed = [line for line in lines if "verdict" in line]
    assert [(line.get("query"), line["sink"], line["rows"]) for line in committed] == [
        ("in_a_span", sinks[0], 2),
        ("by_function", sinks[1], 2),
        ("by_format", sinks[2], 2),
        (None, sinks[3], 2),
    ]

    (said,) = [line for line in driver.output().splitlines() if line.startswith("JOBS ")]
    described = json.loads(said.removeprefix("JOBS "))
    first, *after = [text for text in described if "in_a_span" in text]
    # The jobs that the function starts afterwards have Spark's own words again.
    assert after
    assert {f'pgonce: batch 0 into "&lt;i&gt;events"; {text}' for text in after} == {first}
    (by_function,) = [text for text in described if "by_function" in text]
    assert by_function.startswith("pgonce: batch 0 into by_function; by_function\n")
    # The job of a data source's batch is started before the sink is asked for anything.
    assert {text.splitlines()[0] for text in described if "by_format" in text} == {"by_format"}
