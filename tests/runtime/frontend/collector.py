"""An OpenTelemetry collector in the test's process: it decodes what an exporter sends, over HTTP or gRPC."""

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from loopback_server import LoopbackHandler, LoopbackServer, serving


@dataclass
class Collector:
    """The metrics that have arrived."""

    url: str = ""
    paths: list[str] = field(default_factory=list)
    resource: dict[str, Any] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)

    def take(self, request: ExportTraceServiceRequest) -> None:
        for group in request.resource_spans:
            self.resource |= attributes(group.resource)
            for scope in group.scope_spans:
                self.spans += scope.spans

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


def attributes(owner: Any) -> dict[str, Any]:
    """Return the attributes of a span or a resource as Python values."""
    values = {}
    for pair in owner.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        values[pair.key] = [each.string_value for each in value.values] if kind == "array_value" else value
    return values


@contextmanager
def http_collector() -> Iterator[Collector]:
    collector = Collector()

    class Handler(LoopbackHandler):
        def do_POST(self) -> None:
            collector.paths.append(self.path)
            collector.take(ExportTraceServiceRequest.FromString(self.body()))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send(200, answer, {"Content-Type": "application/x-protobuf"})

    with serving(LoopbackServer(Handler)) as server:
        collector.url = server.url
        yield collector


class _Servicer(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:
        self._collector.take(request)
        return ExportTraceServiceResponse()


@contextmanager
def grpc_collector() -> Iterator[Collector]:
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(1))
    register = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    register(_Servicer(collector), server)  # type: ignore[no-untyped-call]
    collector.url = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()
