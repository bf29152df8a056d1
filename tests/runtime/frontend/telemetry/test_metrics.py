"""The metrics count requests and tokens under vLLM's names and labels."""

import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from kvasir.client.request_observer import Trace
from kvasir.engine import engine_collector
from kvasir.frontend.telemetry.metrics import Metrics
from kvasir.link.frontend_end.remote_engine import EngineState
from kvasir.link.protocol import DraftStats, FinishReason
from kvasir.request.params import SamplingParams
from runtime.frontend.harness import MODEL, Frontend, running_frontend

Key = tuple[str, ...]


def parse(text: str) -> dict[Key, Sample]:
    """Return the samples by name and labels, without the model's name and the buckets."""
    samples: dict[Key, Sample] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "le" in sample.labels:
                continue
            key = (sample.name, *(sample.labels[k] for k in sorted(sample.labels) if k != "model_name"))
            assert key not in samples, f"{key} twice: Prometheus would take none of them"
            samples[key] = sample
    return samples


async def load_shown(frontend: Frontend) -> None:
    await frontend.until(lambda: all(engine.shows_load for engine in frontend.service.llm.engines.values()))


async def scrape(frontend: Frontend) -> dict[Key, Sample]:
    async with frontend.http() as client:
        response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return parse(response.text)


async def test_requests_tokens_and_times_count_for_their_engine(frontend: Frontend) -> None:
    frontend.engine.script.cached = 1
    async with frontend.http() as client:
        await client.post("/v1/completions", json={"prompt": [5, 6, 7], "max_tokens": 50})
        await client.post("/v1/completions", json={"prompt": [5], "max_tokens": 2})
    await load_shown(frontend)
    samples = await scrape(frontend)
    tokens = len(frontend.engine.script.answer) + 1 + 2
    values = {
        ("vllm:prompt_tokens_total", "0"): 4,
        ("vllm:generation_tokens_total", "0"): tokens,
        ("vllm:prefix_cache_queries_total", "0"): 4,
        ("vllm:prefix_cache_hits_total", "0"): 2,
        ("vllm:prompt_tokens_cached_total", "0"): 2,
        ("vllm:request_success_total", "0", "stop"): 1,
        ("vllm:request_success_total", "0", "length"): 1,
        ("vllm:request_success_total", "0", "abort"): 0,
        ("vllm:time_to_first_token_seconds_count", "0"): 2,
        ("vllm:inter_token_latency_seconds_count", "0"): tokens - 2,
        ("vllm:time_per_output_token_seconds_count", "0"): tokens - 2,
        ("vllm:e2e_request_latency_seconds_count", "0"): 2,
        ("vllm:request_queue_time_seconds_count", "0"): 2,
        ("vllm:request_prefill_time_seconds_count", "0"): 2,
        ("vllm:request_decode_time_seconds_count", "0"): 2,
        ("vllm:request_inference_time_seconds_count", "0"): 2,
        ("vllm:request_time_per_output_token_seconds_count", "0"): 2,
        ("vllm:request_prompt_tokens_sum", "0"): 4,
        ("vllm:request_generation_tokens_sum", "0"): tokens,
        ("vllm:request_max_num_generation_tokens_sum", "0"): tokens,
        ("vllm:request_num_preemptions_count", "0"): 2,
        ("vllm:request_num_preemptions_sum", "0"): 0,
        ("vllm:request_params_max_tokens_sum", "0"): 52,
        ("vllm:request_params_n_sum", "0"): 2,
        ("vllm:request_params_n_count", "0"): 2,
        ("kvasir:engine_usable", "0"): 1,
        ("kvasir:live_requests",): 0,
        ("http_requests_total", "/v1/completions", "POST", "2xx"): 2,
        ("http_request_duration_seconds_count", "/v1/completions", "POST"): 2,
    }
    assert {key: samples[key].value for key in values} == values
    assert samples["vllm:generation_tokens_total", "0"].labels["model_name"] == MODEL
    loads = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    assert {(name, "0") for name in loads} <= samples.keys()


async def test_the_choices_of_a_prompt_are_told_once_for_each_prompt(frontend: Frontend) -> None:
    bodies = ({"prompt": "Hi"}, {"prompt": ["Hi", "Ho"], "n": 2}, {"prompt": "Hi", "n": 1, "best_of": 3})
    async with frontend.http() as client:
        for body in bodies:
            await client.post("/v1/completions", json=body)
        text = (await client.get("/metrics")).text
    (family,) = [each for each in text_string_to_metric_families(text) if each.name == "vllm:request_params_n"]
    values = {sample.labels.get("le", sample.name.rpartition("_")[2]): sample.value for sample in family.samples}
    assert values == {
        "1.0": 1,
        "2.0": 3,
        "5.0": 4,
        "10.0": 4,
        "20.0": 4,
        "+Inf": 4,
        "count": 4,
        "sum": 1 + 2 + 2 + 3,
    }


async def test_the_longest_choice_of_a_prompt_is_observed_once(frontend: Frontend) -> None:
    longest = len(frontend.engine.script.answer) + 1
    frontend.engine.script.by_seed = {7: frontend.engine.script.answer[:2]}  # the seed of the first choice
    async with frontend.http() as client:
        await client.post("/v1/completions", json={"prompt": ["Hi", "Ho"], "n": 3, "seed": 7, "max_tokens": 50})
    samples = await scrape(frontend)
    assert samples["vllm:request_max_num_generation_tokens_count", "0"].value == 2
    assert samples["vllm:request_max_num_generation_tokens_sum", "0"].value == 2 * longest
    assert samples["vllm:request_generation_tokens_count", "0"].value == 6


async def test_the_probe_port_leaves_out_what_engines_show(frontend: Frontend) -> None:
    async with frontend.http() as client:
        await client.post("/v1/completions", json={"prompt": "Hi"})
    await load_shown(frontend)
    both = parse(frontend.service.metrics.render().decode())
    own = parse(frontend.status.metrics().decode())
    of_engines = {key[0].removesuffix("_total") for key in both.keys() - own.keys()}
    shown = {name for name, _ in (*engine_collector._GAUGES, *engine_collector._COUNTERS)}
    assert shown | {"vllm:cache_config_info", "kvasir:engine_step_age_seconds"} == {
        name for name in of_engines if not name.endswith("_created")
    }
    assert ("vllm:e2e_request_latency_seconds_count", "0") in own
    assert own.keys() <= both.keys()
    in_queue = ("vllm:num_requests_waiting", "")  # engines do not know of these
    assert own[in_queue].value == both[in_queue].value == 0


async def test_an_engine_that_another_frontend_shows_is_left_out(frontend: Frontend) -> None:
    await load_shown(frontend)
    await frontend.add_engine()
    await load_shown(frontend)
    first, second = frontend.service.llm.engines.values()
    second.shows_load = False
    samples = parse(frontend.service.metrics.render().decode())  # before the next heartbeat
    assert {key[1] for key in samples if key[0] == "kvasir:engine_step_age_seconds"} == {str(first.rank)}
    assert {key[1] for key in samples if key[0] == "kvasir:engine_usable"} == {str(first.rank), str(second.rank)}


async def test_the_drafts_of_engines_are_counted(frontend: Frontend) -> None:
    frontend.engine.script.drafts = DraftStats(4, 12, (3, 2, 0))
    async with frontend.http() as client:
        await client.post("/v1/completions", json={"prompt": "Hi"})
    await load_shown(frontend)
    samples = await scrape(frontend)
    assert samples["vllm:spec_decode_num_drafts_total", "0"].value == 4
    assert samples["vllm:spec_decode_num_draft_tokens_total", "0"].value == 12
    assert samples["vllm:spec_decode_num_accepted_tokens_total", "0"].value == 5
    by_place = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert [samples[by_place, "0", place].value for place in "012"] == [3, 2, 0]
    page = (Path(__file__).parents[4] / "docs/metrics.md").read_text()
    for name in {key[0] for key in samples if "spec_decode" in key[0] and key[0].endswith("_total")}:
        assert f"| `{name}` |" in page


def ended(trace: Trace, reason: FinishReason) -> Trace:
    trace.finished, trace.reason = trace.started + 10.0, reason
    return trace


def test_the_phases_of_a_request_add_up_to_its_latency() -> None:
    metrics = Metrics(MODEL)
    trace = Trace(SamplingParams(max_tokens=9, seed=0), prompt_tokens=3, output_tokens=5, rank=2, started=100.0)
    trace.queue_seconds, trace.first_token, trace.last_token = 1.0, 103.0, 109.0
    metrics.request_finished(ended(trace, FinishReason.STOP))
    samples = parse(metrics.render().decode())
    seconds = {
        name: samples[f"vllm:request_{name}_time_seconds_sum", "2"].value
        for name in ("queue", "prefill", "decode", "inference")
    }
    assert seconds == {"queue": 1.0, "prefill": 2.0, "decode": 6.0, "inference": 8.0}
    assert samples["vllm:request_time_per_output_token_seconds_sum", "2"].value == 1.5


def test_a_request_without_a_token_has_no_phases() -> None:
    metrics = Metrics(MODEL)
    metrics.request_finished(ended(Trace(rank=0), FinishReason.ERROR))
    samples = parse(metrics.render().decode())
    assert samples["vllm:request_success_total", "0", "error"].value == 1
    assert samples["vllm:request_decode_time_seconds_count", "0"].value == 0


def test_a_second_attempt_does_not_count_its_prompt_again() -> None:
    metrics = Metrics(MODEL)
    trace = Trace(prompt_tokens=7, rank=0, attempts=1)
    metrics.request_started(trace)
    trace.attempts, trace.rank = 2, 1
    metrics.request_started(trace)
    samples = parse(metrics.render().decode())
    assert sum(s.value for (name, *_), s in samples.items() if name == "vllm:prompt_tokens_total") == 7


async def test_a_rank_that_is_replaced_is_shown_once(frontend: Frontend) -> None:
    old = next(iter(frontend.service.llm.engines.values()))
    second = await frontend.add_engine()
    frontend.service.llm.engines[second.incarnation].rank = old.rank
    old.state = EngineState.DRAINING
    samples = await scrape(frontend)
    assert samples["kvasir:engine_usable", "0"].value == 1


async def test_refused_requests_and_unknown_paths_are_counted() -> None:
    async with running_frontend(max_live_requests=1) as frontend, frontend.http() as client:
        frontend.engine.script.pause_at = 1
        async with client.stream("POST", "/v1/completions", json={"prompt": "Hi", "stream": True}) as answer:
            await anext(answer.aiter_lines())
            refused = await client.post("/v1/completions", json={"prompt": "Hi"})
        await client.get("/made/up/" + "x" * 100)
        await client.head("/v1/models")
        samples = await scrape(frontend)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert samples["vllm:admission_rejections_total",].value == 1
    assert samples["http_requests_total", "/v1/completions", "POST", "4xx"].value == 1
    assert samples["http_requests_total", "none", "GET", "4xx"].value == 1
    assert samples["http_requests_total", "/v1/models", "HEAD", "2xx"].value == 1


async def test_every_answer_of_429_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_frontend(max_live_requests=2, max_client_share=1.0) as frontend, frontend.http() as client:
        monkeypatch.setattr(frontend.service.llm.input, "_max_queued", 0)
        frontend.engine.script.pause_at = 1
        async with client.stream("POST", "/v1/completions", json={"prompt": "Hi", "stream": True}) as answer:
            await anext(answer.aiter_lines())
            two = await client.post("/v1/completions", json={"prompt": ["room for one", "and none for two"]})
            long = await client.post("/v1/completions", json={"prompt": "waits to be tokenized " * 2_000})
        samples = await scrape(frontend)
    assert [two.status_code, long.status_code] == [429, 429], two.text + long.text
    assert samples["vllm:admission_rejections_total",].value == 2


def test_moves_and_stalls_are_counted() -> None:
    metrics, trace = Metrics("demo"), Trace()
    for exact in (True, True, False):
        metrics.request_moved(trace, "lost", exact)
    metrics.request_resumed(trace, 0.5)
    samples = parse(metrics.render_own().decode())
    assert samples["kvasir:migrations_total", "true", "lost"].value == 2
    assert samples["kvasir:migrations_total", "false", "lost"].value == 1
    assert samples["kvasir:migration_stall_seconds_sum",].value == 0.5


async def test_the_documentation_lists_exactly_these_metrics() -> None:
    async with running_frontend(allow_runtime_lora_updating=True) as frontend, frontend.http() as client:
        await client.post("/v1/completions", json={"prompt": "Hi"})
        await load_shown(frontend)
        text = (await client.get("/metrics")).text
    shown = {family.name for family in text_string_to_metric_families(text)}
    page = (Path(__file__).parents[4] / "docs/metrics.md").read_text()
    listed = {
        line.split("`")[1].removesuffix("_total")
        for line in page.partition("## Frontend")[2].partition("\n## ")[0].splitlines()
        if line.startswith("| `")
    }
    own = {name for name in shown if name.startswith(("vllm:", "kvasir:", "http_"))}
    own.add("vllm:lora_requests_info")  # of a frontend with adapters
    assert {name for name in own if not name.endswith("_created")} == listed, json.dumps(sorted(own ^ listed))
