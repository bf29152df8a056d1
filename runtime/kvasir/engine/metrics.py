"""The engine's metrics, read from its counters when somebody scrapes: a step pays nothing for them.

Names and meanings are vLLM's (`vllm:…`), so that existing dashboards work; what only Kvasir has is `kvasir:…`.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvasir.engine.core import EngineCore
from kvasir.engine.status import EngineStatus

_GAUGES = (
    ("vllm:num_requests_running", "Requests that own a row."),
    ("vllm:num_requests_waiting", "Requests that wait for a row, preempted ones included."),
    ("vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1."),
)
_COUNTERS = (
    ("vllm:num_preemptions", "Requests that lost their row and were computed again."),
    ("vllm:prompt_tokens", "Prompt tokens computed."),
    ("vllm:generation_tokens", "Tokens generated."),
)


class EngineCollector(Collector):
    """Register it with the process's registry; `core` is set once the engine has one."""

    def __init__(self, status: EngineStatus, model_name: str) -> None:
        self.core: EngineCore | None = None
        self._status = status
        self._labels = {"model_name": model_name, "engine": str(status.rank)}

    def collect(self) -> Iterator[Metric]:
        names, values = list(self._labels), list(self._labels.values())
        if self.core is not None:
            gauges, counters = _read(self.core)
            for (name, text), value in zip(_GAUGES, gauges, strict=True):
                gauge = GaugeMetricFamily(name, text, labels=names)
                gauge.add_metric(values, value)
                yield gauge
            for (name, text), value in zip(_COUNTERS, counters, strict=True):
                counter = CounterMetricFamily(name, text, labels=names)
                counter.add_metric(values, value)
                yield counter
        startup = GaugeMetricFamily(
            "kvasir:engine_startup_seconds", "Time that a phase of the start-up took.", labels=[*names, "phase"]
        )
        for phase, seconds in list(self._status.startup_seconds.items()):
            startup.add_metric([*values, phase], seconds)
        yield startup


def _read(core: EngineCore) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The values of _GAUGES and of _COUNTERS, in their order."""
    scheduler = core.scheduler
    return (
        (len(scheduler.running), len(scheduler.waiting), scheduler.pool.usage),
        (scheduler.num_preemptions, scheduler.num_prompt_tokens, scheduler.num_generated_tokens),
    )
