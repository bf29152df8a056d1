"""EngineCollector: the engine's Prometheus metrics.

Names and meanings are vLLM's (`vllm:…`), for its dashboards; Kvasir's own begin with `kvasir:`.
"""

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from kvasir.engine.core import EngineCore
from kvasir.engine.handover.hand_over import HandOver
from kvasir.engine.health.engine_status import EngineStatus
from kvasir.engine.health.step_trace import Buckets, StepTrace
from kvasir.process.metric_families import counter, draft_metrics, gauge

_GAUGES = (
    ("vllm:num_requests_running", "Requests that own a row."),
    ("vllm:num_requests_waiting", "Requests that wait for a row, including preempted ones."),
    ("vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1."),
)
_COUNTERS = (
    ("vllm:num_preemptions", "Requests that lost their row and were computed again."),
    ("vllm:corrupted_requests", "Requests that ended because their logits were not numbers."),
    ("vllm:prompt_tokens", "Prompt tokens of requests that have begun to generate, including cached ones."),
    ("vllm:prompt_tokens_cached", "Prompt tokens of these requests that were found in the prefix cache."),
    ("vllm:generation_tokens", "Tokens generated."),
    ("vllm:prefix_cache_queries", "Tokens of requests that were looked up in the prefix cache."),
    ("vllm:prefix_cache_hits", "Tokens that were found in the prefix cache."),
)
_FETCHES = (
    ("kvasir:kv_blocks_fetched", "KV blocks that came from other engines."),
    ("kvasir:kv_fetches_failed", "Fetches of KV blocks that ended early."),
)


class EngineCollector(Collector):
    # `core` and `hand_over` are set once the engine has them.

    def __init__(self, status: EngineStatus, model_name: str) -> None:
        self.core: EngineCore | None = None
        self.hand_over: HandOver | None = None
        self._status = status
        self._labels = {"model_name": model_name, "engine": str(status.rank)}

    def collect(self) -> Iterator[Metric]:
        names, values = list(self._labels), list(self._labels.values())
        if self.core is not None:
            gauges, counters = _read(self.core)
            for (name, text), value in zip(_GAUGES, gauges, strict=True):
                yield gauge(name, text, names, [(values, value)])
            fetched = self.hand_over
            counters += (0, 0) if fetched is None else (fetched.num_fetched_blocks, fetched.num_failed_fetches)
            for (name, text), value in zip(_COUNTERS + _FETCHES, counters, strict=True):
                yield counter(name, text, names, [(values, value)])
            yield self._cache_config(self.core)
            if (drafts := self.core.stats().drafts) is not None:
                yield from draft_metrics(names, [(values, drafts.drafts, drafts.tokens, drafts.accepted)])
            yield from self._steps(self._status.trace)
        startup = [([*values, phase], seconds) for phase, seconds in list(self._status.startup_seconds.items())]
        text = "Time that a phase of the start-up took."
        yield gauge("kvasir:engine_startup_seconds", text, [*names, "phase"], startup)
        text = "Messages of newer frontends that the engine skipped."
        yield counter("kvasir:unknown_messages", text, names, [(values, self._status.unknown_messages())])

    def _cache_config(self, core: EngineCore) -> Metric:
        pool = core.scheduler.blocks.pool
        labels = self._labels | {
            "block_size": str(core.scheduler.blocks.block_size),
            "num_gpu_blocks": str(pool.num_blocks),
            "enable_prefix_caching": str(pool.cache is not None),
        }
        text = "The settings of the KV cache, as labels; the value is always 1."
        return gauge("vllm:cache_config_info", text, list(labels), [(list(labels.values()), 1)])

    def _steps(self, trace: StepTrace) -> Iterator[Metric]:
        names, values = list(self._labels), list(self._labels.values())
        for name, text, buckets in (
            ("vllm:iteration_tokens_total", "Tokens computed in a step.", trace.tokens),
            ("kvasir:step_requests", "Requests in a step.", trace.requests),
            ("kvasir:step_seconds", "Time that a step took, from its scheduling to its sending.", trace.seconds),
        ):
            histogram = HistogramMetricFamily(name, text, labels=names)
            histogram.add_metric(values, _cumulative(buckets), buckets.sum)
            yield histogram
        phases = [([*values, phase], seconds) for phase, seconds in trace.phase_seconds.items()]
        text = "Time spent in a phase of the steps."
        yield counter("kvasir:step_phase_seconds", text, [*names, "phase"], phases)
        text = "How long the current step has taken so far."
        yield gauge("kvasir:engine_step_age_seconds", text, names, [(values, trace.age)])


def _cumulative(buckets: Buckets) -> list[tuple[str, float]]:
    bounds = [*map(floatToGoString, buckets.bounds), "+Inf"]
    return list(zip(bounds, accumulate(buckets.counts), strict=True))


def _read(core: EngineCore) -> tuple[tuple[float, ...], tuple[float, ...]]:
    scheduler = core.scheduler
    blocks = scheduler.blocks
    return (
        (len(scheduler.running), core.num_waiting, blocks.pool.usage),
        (
            scheduler.num_preemptions,
            scheduler.num_corrupted_requests,
            scheduler.num_prompt_tokens,
            scheduler.num_cached_prompt_tokens,
            scheduler.num_generated_tokens,
            blocks.num_queried_tokens,
            blocks.num_hit_tokens,
        ),
    )
