"""
A program with OpenTelemetry's SDK that commits a few batches, some of which fail.

Runs in: a process of its own, because a provider is set once in a process. Its arguments are two connection strings:
of the database, and of a proxy that cuts the line at the next COMMIT.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from support.batches import make_planned_batch
from support.committed_rows import appending, job, settings

from pgonce.offsets_store.commit.batch_job import commit_job
from pgonce.offsets_store.commit.retrying import EarlyTry, commit_batch
from pgonce.offsets_store.commit.work import NotNowError, Work
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.postgres.connect import driver_connection


def main(url: str, cut_url: str) -> None:
    """Commit a batch in a span of the program's, and the others without one."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    metrics.set_meter_provider(meters)

    with trace.get_tracer("program").start_as_current_span("program's own"):
        commit_batch(settings(url), make_planned_batch(0, query_name="orders"), writing(1, 2))
    commit_batch(settings(url), make_planned_batch(0, run_id="run 2"), writing(1, 2))
    with suppress(PgonceError):
        commit_batch(settings(url), make_planned_batch(7, run_id="run 2"), writing(3))
    with suppress(PgonceError):
        commit_batch(
            settings(url), make_planned_batch(1, run_id="run 2"), running("INSERT INTO events VALUES ('sécrèt')")
        )
    EarlyTry(settings(url)).begin(make_planned_batch(1, run_id="run 2"), running(None))
    commit_batch(settings(cut_url), make_planned_batch(1, run_id="run 2"), writing(3))
    commit_job(settings(url), job(), writing(4))
    provider.shutdown()
    meters.shutdown()


def writing(*ids: int) -> Work:
    """The work that writes rows with these ids, and says into which table."""

    def publish(connection, *_):
        appending(*ids).publish(connection, *_)
        return Published(len(ids), "inline", targets={"public.events": 1})

    return Work(lambda _: "public.events", publish)


def running(sql: str | None) -> Work:
    """The work that runs a statement; without one, its rows are missing."""

    def publish(connection, *_):
        if sql is None:
            raise NotNowError("a row is missing")
        driver_connection(connection).execute(sql)

    return Work(lambda _: "public.events", publish)


if __name__ == "__main__":
    main(*sys.argv[1:])
