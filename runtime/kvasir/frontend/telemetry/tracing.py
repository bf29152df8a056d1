"""OpenTelemetry traces: a server span per request, with spans for its choices' queue, prefill and decode.

Spans are made when a request has ended. OpenTelemetry's SDK is imported only here, and only with
`--otlp-traces-endpoint`.
"""

import importlib
import os
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

from kvasir.client.request_observer import Trace
from kvasir.config.options import ConfigError
from kvasir.frontend.telemetry.request_log import FollowedGeneration, RequestRecord
from kvasir.version import __version__
from kvasir_contract.extras import install_extra

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

# for the last spans when the process stops
FLUSH_SECONDS: Final = 3.0
MAX_CHOICES: Final = 16

# by convention; OTLP over HTTP uses 4318
_GRPC_PORT: Final = 4317
_PROTOCOL_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PARENT_HEADERS: Final = (b"traceparent", b"tracestate")
# vLLM's name
_GENERATION_SPAN: Final = "llm_request"


class Tracing:
    """Raises ConfigError if it cannot export to the endpoint."""

    def __init__(self, endpoint: str) -> None:
        exporter = _exporter(endpoint)
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._api = trace
        self._propagator = TraceContextTextMapPropagator()
        self._provider = TracerProvider(resource=Resource.create(_resource_attributes()), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("kvasir", __version__)

    def request_ended(self, record: RequestRecord, route: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Make the spans. `headers` may have `traceparent` and `tracestate`."""
        carrier = {name.decode(): value.decode("latin-1") for name, value in headers if name in _PARENT_HEADERS}
        parent = self._propagator.extract(carrier) if carrier else None
        clock = _Clock()
        generation = record.generation
        span = self._tracer.start_span(
            f"{record.method} {route}" if generation is None else _GENERATION_SPAN,
            context=parent,
            kind=self._api.SpanKind.SERVER,
            start_time=clock.nanoseconds(record.started),
        )
        if span.is_recording():
            span.set_attributes(_request_attributes(record, route))
            if record.status >= 500 or (record.error and record.status < 400):  # an error within a stream
                span.set_status(self._api.StatusCode.ERROR, record.error)
            if generation is not None:
                span.set_attributes(_generation_attributes(record, generation, clock.now))
                self._add_phases(span, generation, clock)
        span.end(clock.nanoseconds(clock.now))

    def close(self) -> None:
        """Export the last spans, for at most FLUSH_SECONDS."""
        flushing = threading.Thread(target=self._provider.shutdown, name="flush-traces", daemon=True)
        flushing.start()
        flushing.join(FLUSH_SECONDS)

    def _add_phases(self, parent: "Span", generation: FollowedGeneration, clock: "_Clock") -> None:
        context = self._api.set_span_in_context(parent)
        for index, trace in enumerate(generation.traces[:MAX_CHOICES]):
            attributes: dict[str, Any] = {"kvasir.choice": index, "kvasir.engine": trace.engine}
            for name, start, end in phases(trace):
                self._add_span(name, context, clock.nanoseconds(start), clock.nanoseconds(end), attributes)

    def _add_span(self, name: str, context: "Context", start: int, end: int, attributes: Mapping[str, Any]) -> None:
        span = self._tracer.start_span(name, context=context, start_time=start, attributes=dict(attributes))
        span.end(end)


class _Clock:
    def __init__(self) -> None:
        self.now = time.perf_counter()
        self._offset = time.time_ns() - int(self.now * 1e9)

    def nanoseconds(self, moment: float) -> int:
        return int(moment * 1e9) + self._offset


def phases(trace: Trace) -> list[tuple[str, float, float]]:
    """Return name, start and end (perf_counter) of the phases of a request with tokens."""
    # older engines report no durations, so the frontend's times count
    first, last = trace.first_token, trace.last_token
    if first is None or last is None:
        return []
    queue = trace.queue_seconds or 0.0
    if trace.prefill_seconds is None:
        admitted = min(first, trace.started + queue)
    else:
        admitted = max(trace.started, first - trace.prefill_seconds)
    decoded = last if trace.decode_seconds is None else first + trace.decode_seconds
    return [
        ("queue", max(trace.started, admitted - queue), admitted),
        ("prefill", admitted, first),
        ("decode", first, decoded),
    ]


def _request_attributes(record: RequestRecord, route: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "http.request.method": record.method,
        "http.route": route,
        "http.response.status_code": record.status,
        "gen_ai.request.id": record.request_id,
    }
    if record.error:
        attributes["error.type"] = str(record.status)
    return attributes


def _generation_attributes(record: RequestRecord, generation: FollowedGeneration, now: float) -> dict[str, Any]:
    """Return vLLM's attributes: sums over the choices, and times of the first one with a token."""
    traces = generation.traces
    attributes: dict[str, Any] = {
        "gen_ai.response.model": record.model,
        "gen_ai.request.n": generation.n,
        "gen_ai.usage.prompt_tokens": generation.usage.prompt_tokens,
        "gen_ai.usage.completion_tokens": sum(trace.output_tokens for trace in traces),
        "gen_ai.latency.e2e": now - record.started,
        "kvasir.cached_tokens": generation.usage.prompt_tokens_details.cached_tokens,
        "kvasir.preemptions": sum(trace.num_preemptions for trace in traces),
    }
    if (params := traces[0].params) is not None:
        attributes["gen_ai.request.max_tokens"] = params.max_tokens
        attributes["gen_ai.request.temperature"] = params.temperature
        attributes["gen_ai.request.top_p"] = params.top_p
    if reasons := sorted({trace.reason.value for trace in traces if trace.reason is not None}):
        attributes["gen_ai.response.finish_reasons"] = reasons
    begun = [trace for trace in traces if trace.first_token is not None]
    if begun:
        first = min(begun, key=lambda trace: trace.first_token or 0.0)
        assert first.first_token is not None
        times = {name: end - start for name, start, end in phases(first)}
        attributes["gen_ai.latency.time_to_first_token"] = first.first_token - record.started
        attributes["gen_ai.latency.time_in_queue"] = times["queue"]
        attributes["gen_ai.latency.time_in_model_prefill"] = times["prefill"]
        attributes["gen_ai.latency.time_in_model_decode"] = times["decode"]
        attributes["gen_ai.latency.time_in_model_inference"] = times["prefill"] + times["decode"]
    return attributes


def _resource_attributes() -> dict[str, str]:
    environ = os.environ
    named = "OTEL_SERVICE_NAME" in environ or "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return {"service.version": __version__} if named else {"service.name": "kvasir", "service.version": __version__}


def _exporter(endpoint: str) -> "SpanExporter":
    url = urlsplit(endpoint)
    if _uses_grpc(endpoint):
        module = _import("opentelemetry.exporter.otlp.proto.grpc.trace_exporter", "grpc")
        scheme = {"grpc": "http", "grpcs": "https"}.get(url.scheme, url.scheme)
        return module.OTLPSpanExporter(endpoint=urlunsplit(url._replace(scheme=scheme)))  # type: ignore[no-any-return]
    module = _import("opentelemetry.exporter.otlp.proto.http.trace_exporter", "http")
    path = "/v1/traces" if url.path in ("", "/") else url.path
    return module.OTLPSpanExporter(endpoint=urlunsplit(url._replace(path=path)))  # type: ignore[no-any-return]


def _uses_grpc(endpoint: str) -> bool:
    # OpenTelemetry's variable decides, as in vLLM; else the URL's scheme or port
    url = urlsplit(endpoint)
    if url.scheme in ("grpc", "grpcs"):
        return True
    for name in _PROTOCOL_VARIABLES:
        if protocol := os.environ.get(name):
            if protocol not in ("grpc", "http/protobuf"):
                raise ConfigError(f"{name}={protocol}: traces are exported as http/protobuf or grpc")
            return protocol == "grpc"
    return url.port == _GRPC_PORT


def _import(name: str, protocol: str) -> Any:
    try:
        importlib.import_module("opentelemetry.sdk.trace")
        return importlib.import_module(name)
    except ImportError as error:
        others = () if protocol == "http" else ("opentelemetry-exporter-otlp-proto-grpc",)
        raise ConfigError(
            f"--otlp-traces-endpoint needs packages that are not installed ({error}): "
            + install_extra("otel", *others)
            + (", or use the HTTP port of the collector (4318)" if protocol == "grpc" else "")
        ) from error
