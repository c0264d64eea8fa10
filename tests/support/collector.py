"""
A collector of OpenTelemetry: takes what exporters send by OTLP over HTTP, and decodes it.

Runs in: pytest, in a thread. Invariant: what is asked of it is what came over the line, in the form that OpenTelemetry
publishes for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """What has come so far; ``raw`` has the bytes, to look for what must not be in them."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.raw = b""
        self._traces: list[ExportTraceServiceRequest] = []
        self._metrics: list[ExportMetricsServiceRequest] = []

    def environment(self) -> dict[str, str]:
        """The environment in which OpenTelemetry's own configuration sends everything here, and soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_LOGS_EXPORTER": "none",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
        }

    def take(self, path: str, body: bytes) -> None:
        """Keep one request of an exporter."""
        self.raw += body
        if path == "/v1/traces":
            self._traces.append(ExportTraceServiceRequest.FromString(body))
        elif path == "/v1/metrics":
            self._metrics.append(ExportMetricsServiceRequest.FromString(body))

    def spans(self, scope: str) -> list[Span]:
        """The spans of this instrumentation, by the time at which they began."""
        found = [
            span
            for request in self._traces
            for resource in request.resource_spans
            for scoped in resource.scope_spans
            if scoped.scope.name == scope
            for span in scoped.spans
        ]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    def durations(self, name: str) -> list[tuple[dict[str, Any], int]]:
        """The attributes of each point of this histogram, and how many were counted, as they were last told."""
        newest = {
            tuple(sorted(attributes(point.attributes).items())): point.count
            for request in self._metrics
            for resource in request.resource_metrics
            for scoped in resource.scope_metrics
            for metric in scoped.metrics
            if metric.name == name and metric.unit == "s"
            for point in metric.histogram.data_points
        }
        return [(dict(key), count) for key, count in newest.items()]


def attributes(of: Iterator[KeyValue]) -> dict[str, Any]:
    """Attributes as a dictionary."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in of}


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens on this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
