"""The spans of a request have the engine's times, and the last ones are sent when the service stops."""

import httpx

from runtime.frontend.collector import attributes, http_collector
from service.running import running

PHASES = ("queue", "model_prefill", "model_decode")


def test_a_service_sends_the_spans_before_it_ends() -> None:
    with http_collector() as collector:
        options = ("--served-model-name", "demo", "--otlp-traces-endpoint", collector.url)
        with running("serve", "demo://", "--port", "0", *options) as service:
            body = {"model": "demo", "prompt": "What is a pod?", "max_tokens": 8, "ignore_eos": True}
            usage = httpx.post(f"{service.url}/v1/completions", json=body, timeout=60).json()["usage"]
            assert service.stop() == 0, service.text
    [request] = collector.named("llm_request")
    found = attributes(request)
    assert found["gen_ai.usage.prompt_tokens"] == usage["prompt_tokens"]
    assert found["gen_ai.usage.completion_tokens"] == 8
    queue, prefill, decode = (found[f"gen_ai.latency.time_in_{name}"] for name in PHASES)
    assert queue >= 0
    assert prefill > 0
    assert decode > 0
    assert queue + prefill <= found["gen_ai.latency.time_to_first_token"] <= found["gen_ai.latency.e2e"]
    assert [span.name for span in collector.spans if span.parent_span_id] == ["queue", "prefill", "decode"]
