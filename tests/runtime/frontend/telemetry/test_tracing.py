import asyncio
import itertools
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kvasir.client.request_observer import Trace
from kvasir.config.frontend_settings import ServerConfig
from kvasir.config.options import ConfigError
from kvasir.frontend.telemetry import tracing
from kvasir.frontend.telemetry.tracing import Tracing, phases
from runtime.frontend.collector import Collector, attributes, grpc_collector, http_collector
from runtime.frontend.harness import ANSWER, MODEL, Frontend, running_frontend

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@asynccontextmanager
async def traced(endpoint: str) -> AsyncIterator[Frontend]:
    """A frontend whose spans have all been exported after the block."""
    async with running_frontend(otlp_traces_endpoint=endpoint) as frontend:
        assert frontend.service.tracing is not None
        yield frontend
        await frontend.idle()
        await asyncio.to_thread(frontend.service.tracing.close)


@pytest.mark.parametrize("collected", [http_collector, grpc_collector])
async def test_a_request_has_a_server_span_with_its_phases_below(
    collected: Callable[[], AbstractContextManager[Collector]],
) -> None:
    before = time.time_ns()
    with collected() as collector:
        async with traced(collector.url) as frontend, frontend.http() as client:
            body = {"prompt": [5, 6, 7], "max_tokens": 50, "temperature": 0.5, "top_p": 0.9}
            answer = await client.post("/v1/completions", json=body, headers={"X-Request-Id": "mine"})
            tokens = answer.json()["usage"]["completion_tokens"]
    [span] = collector.named("llm_request")
    assert span.kind == Span.SPAN_KIND_SERVER
    assert not span.parent_span_id
    assert before <= span.start_time_unix_nano < span.end_time_unix_nano <= time.time_ns()
    found = attributes(span)
    assert (
        found.items()
        >= {
            "gen_ai.response.model": MODEL,
            "gen_ai.request.id": "mine",
            "gen_ai.request.max_tokens": 50,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.top_p": 0.9,
            "gen_ai.request.n": 1,
            "gen_ai.usage.prompt_tokens": 3,
            "gen_ai.usage.completion_tokens": tokens,
            "gen_ai.response.finish_reasons": ["stop"],
            "http.route": "/v1/completions",
            "http.response.status_code": 200,
        }.items()
    )
    assert 0 < found["gen_ai.latency.time_to_first_token"] <= found["gen_ai.latency.e2e"]
    assert found["gen_ai.latency.time_in_queue"] == 0.0
    assert collector.resource["service.name"] == "kvasir"
    children = [each for each in collector.spans if each.parent_span_id == span.span_id]
    assert [each.name for each in children] == ["queue", "prefill", "decode"]
    for earlier, later in itertools.pairwise(children):
        assert earlier.end_time_unix_nano == later.start_time_unix_nano
    assert {attributes(each)["kvasir.engine"] for each in children} == {frontend.engine.incarnation}
    assert {each.trace_id for each in collector.spans} == {span.trace_id}


async def test_the_trace_of_the_caller_goes_on() -> None:
    headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "tracestate": "vendor=7"}
    with http_collector() as collector:
        async with traced(collector.url) as frontend, frontend.http(**headers) as client:
            await client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]})
    [span] = collector.named("llm_request")
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    assert span.trace_state == "vendor=7"
    assert {each.trace_id.hex() for each in collector.spans} == {TRACE_ID}
    assert collector.paths == ["/v1/traces"]


async def test_a_caller_that_does_not_sample_gets_no_spans() -> None:
    with http_collector() as collector:
        async with traced(collector.url) as frontend:
            async with frontend.http(traceparent=f"00-{TRACE_ID}-{PARENT_ID}-00") as client:
                await client.post("/v1/completions", json={"prompt": "Hi"})
            async with frontend.http(traceparent="00-not-a-trace-01") as client:
                await client.post("/v1/completions", json={"prompt": "Ho"})
    [span] = collector.named("llm_request")
    assert span.trace_id.hex() != TRACE_ID


async def test_all_requests_but_probes_have_spans() -> None:
    with http_collector() as collector:
        async with traced(collector.url + "/v1/traces") as frontend, frontend.http() as client:
            await client.post("/v1/completions", json={"prompt": ["Hi", "Ho"], "n": 2, "max_tokens": 1})
            await client.get("/v1/models")
            await client.get("/health")
            await client.post("/v1/completions", json={"prompt": 7.5})
            frontend.engine.script.error = "out of luck"
            failed = await client.post("/v1/completions", json={"prompt": "Hi"})
    assert failed.status_code == 500
    assert {span.name for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER} == {
        "llm_request",
        "GET /v1/models",
        "POST /v1/completions",
    }
    several, broken = collector.named("llm_request")
    assert attributes(several)["gen_ai.request.n"] == 2
    assert attributes(several)["gen_ai.usage.completion_tokens"] == 4
    below = [span for span in collector.named("decode") if span.parent_span_id == several.span_id]
    assert [attributes(span)["kvasir.choice"] for span in below] == [0, 1, 2, 3]
    assert broken.status.code == Status.STATUS_CODE_ERROR
    assert "out of luck" in broken.status.message
    [rejected] = collector.named("POST /v1/completions")
    assert rejected.status.code != Status.STATUS_CODE_ERROR, "the client's mistake is not the server's"
    assert attributes(rejected)["http.response.status_code"] == 400


async def test_an_error_within_a_stream_is_seen_in_its_span() -> None:
    with http_collector() as collector:
        async with traced(collector.url) as frontend, frontend.http() as client:
            frontend.engine.script.error = "out of luck"
            body = {"prompt": "Hi", "stream": True}
            assert "out of luck" in (await client.post("/v1/completions", json=body)).text
    [span] = collector.named("llm_request")
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert attributes(span)["gen_ai.usage.completion_tokens"] > 0


async def test_fastapi_makes_no_spans_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would for a provider that the environment of the process sets, with a second server span per request."""
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    async with running_frontend() as frontend, frontend.http() as client:
        assert (await client.post("/v1/completions", json={"prompt": "Hi"})).status_code == 200
    assert spans.get_finished_spans() == ()


async def test_silent_collector_delays_neither_requests_nor_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing, "FLUSH_SECONDS", 0.2)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "20")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with running_frontend(otlp_traces_endpoint=url) as frontend, frontend.http() as client:
            for _ in range(5):
                answer = await client.post("/v1/completions", json={"prompt": "Hi"})
                assert answer.json()["choices"][0]["text"] == ANSWER
            assert frontend.service.tracing is not None
            started = time.monotonic()
            await asyncio.to_thread(frontend.service.tracing.close)
            assert time.monotonic() - started < 5.0, "the exporter alone would wait 20 s"


def test_phases_are_those_of_the_engine() -> None:
    trace = Trace(started=100.0)
    trace.first_token, trace.last_token = 103.0, 109.0
    trace.queue_seconds, trace.prefill_seconds, trace.decode_seconds = 1.0, 1.5, 5.0
    assert phases(trace) == [("queue", 100.5, 101.5), ("prefill", 101.5, 103.0), ("decode", 103.0, 108.0)]


def test_phases_of_an_older_engine_are_those_the_frontend_saw() -> None:
    trace = Trace(started=100.0)
    trace.first_token, trace.last_token, trace.queue_seconds = 103.0, 109.0, 1.0
    assert phases(trace) == [("queue", 100.0, 101.0), ("prefill", 101.0, 103.0), ("decode", 103.0, 109.0)]
    assert phases(Trace()) == []


# ------------------------------------------------------------------------------------------------- the start


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://collector", "http://", "/v1/traces"])
def test_an_endpoint_that_is_not_a_url_is_rejected(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"--otlp-traces-endpoint .*: give a URL"):
        ServerConfig(otlp_traces_endpoint=endpoint)


def test_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    command = r"pip install 'kvasir-serve\[otel\]'"
    with pytest.raises(ConfigError, match=f"--otlp-traces-endpoint needs packages .*{command}"):
        Tracing("http://127.0.0.1:4318")


def test_a_missing_package_of_grpc_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"opentelemetry-exporter-otlp-proto-grpc, or use the HTTP port"):
        Tracing("http://127.0.0.1:4317")


@pytest.mark.parametrize(
    ("endpoint", "variable", "expected"),
    [
        ("http://c:4318", None, False),
        ("http://c:4317", None, True),
        ("http://c:4317", "http/protobuf", False),
        ("http://c:4318", "grpc", True),
        ("grpc://c:4318", "http/protobuf", True),
    ],
)
def test_the_protocol_is_that_of_the_url_or_of_the_variable(
    endpoint: str, variable: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is not None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", variable)
    assert tracing._uses_grpc(endpoint) is expected


def test_an_unknown_protocol_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_PROTOCOL=http/json"):
        Tracing("http://127.0.0.1:4318")


def test_no_exporter_is_imported_without_the_option() -> None:
    """FastAPI imports the API of OpenTelemetry, which does nothing without an SDK."""
    code = (
        "import sys; import kvasir.frontend.server, kvasir.frontend.app; "
        "heavy = ('opentelemetry.sdk', 'opentelemetry.exporter', 'grpc', 'requests'); "
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
