"""
A collector of OpenTelemetry: takes what exporters send by OTLP over HTTP, and decodes it.

Runs in: pytest, in a thread. Invariant: what is asked of it is what came over the line, in the form that OpenTelemetry
publishes for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.http_server import HttpServer, serving

_TRACES, _METRICS = "/v1/traces", "/v1/metrics"


class Collector:
    """What has come so far."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server

    @property
    def raw(self) -> bytes:
        """The bytes that have come, to look for what must not be in them."""
        return b"".join(request.raw for request in self._server.requests)

    def environment(self) -> dict[str, str]:
        """The environment in which OpenTelemetry's own configuration sends everything here, and soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self._server.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_LOGS_EXPORTER": "none",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
        }

    def spans(self, scope: str) -> list[Span]:
        """The spans of this instrumentation, by the time at which they began."""
        found = [
            span
            for request in self._server.asked(_TRACES)
            for resource in ExportTraceServiceRequest.FromString(request.raw).resource_spans
            for scoped in resource.scope_spans
            if scoped.scope.name == scope
            for span in scoped.spans
        ]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    def durations(self, name: str) -> list[tuple[dict[str, Any], int]]:
        """The attributes of each point of this histogram, and how many were counted, as they were last told."""
        newest = {
            tuple(sorted(attributes(point.attributes).items())): point.count
            for request in self._server.asked(_METRICS)
            for resource in ExportMetricsServiceRequest.FromString(request.raw).resource_metrics
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
    with serving(dict.fromkeys((("POST", _TRACES), ("POST", _METRICS)), lambda _: (200, ""))) as server:
        yield Collector(server)
