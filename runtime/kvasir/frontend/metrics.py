"""Prometheus metrics under vLLM's names, so that its dashboards and autoscalers work; AsyncLLM reports to it."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    Counter,
    Histogram,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvasir.client.engine import Engine
from kvasir.protocol import FinishReason

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0),
)
_TOKEN_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0),
)


class Metrics:
    """Implements kvasir.client.observer.RequestObserver. Its registry belongs to the server, not to the process."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._registry = CollectorRegistry()
        for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
            self._registry.register(collector)
        first_token = self._histogram(
            "vllm:time_to_first_token_seconds", "From a request's start to its first token.", _TTFT_BUCKETS
        )
        between_tokens = self._histogram(
            "vllm:inter_token_latency_seconds", "Time between two tokens of a request.", _TOKEN_BUCKETS
        )
        self._registry.register(_SecondName(between_tokens, "vllm:time_per_output_token_seconds"))
        whole_request = self._histogram(
            "vllm:e2e_request_latency_seconds", "From a request's start to its end.", _REQUEST_BUCKETS
        )
        self._first_token = first_token.labels(model_name)
        self._between_tokens = between_tokens.labels(model_name)
        self._whole_request = whole_request.labels(model_name)
        self._prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens of requests given to engines.")
        self._generation_tokens = self._counter("vllm:generation_tokens", "Tokens generated.")
        ended = Counter(
            "vllm:request_success",
            "Requests that ended, by reason; abort: the client left, error: it failed.",
            ("model_name", "finished_reason"),
            registry=self._registry,
        )
        self._ended = {reason: ended.labels(model_name, reason.value) for reason in FinishReason}

    def report_engines(self, engines: Callable[[], Mapping[str, Engine]]) -> None:
        """Add the engines' load, read when the metrics are."""
        self._registry.register(_EngineLoad(self._model_name, engines))

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def request_started(self, prompt_tokens: int) -> None:
        self._prompt_tokens.inc(prompt_tokens)

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def tokens_received(self, count: int, seconds: float | None) -> None:
        self._generation_tokens.inc(count)
        if seconds is not None:
            for _ in range(count):
                self._between_tokens.observe(seconds / count)

    def request_finished(
        self, reason: FinishReason, seconds: float, prompt_tokens: int, output_tokens: int
    ) -> None:
        self._ended[reason].inc()
        self._whole_request.observe(seconds)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, help, ("model_name",), buckets=buckets, registry=self._registry)

    def _counter(self, name: str, help: str) -> Counter:
        return Counter(name, help, ("model_name",), registry=self._registry).labels(self._model_name)


class _SecondName(Collector):
    """Shows a histogram under another name too, without observing everything twice."""

    def __init__(self, histogram: Histogram, name: str) -> None:
        self._histogram = histogram
        self._name = name

    def collect(self) -> Iterable[Metric]:
        for metric in self._histogram.collect():
            copy = Metric(self._name, metric.documentation, metric.type)
            copy.samples = [
                sample._replace(name=self._name + sample.name.removeprefix(metric.name))
                for sample in metric.samples
            ]
            yield copy


class _EngineLoad(Collector):
    """Requests and KV use per engine rank, as the engines last told."""

    def __init__(self, model_name: str, engines: Callable[[], Mapping[str, Engine]]) -> None:
        self._model_name = model_name
        self._engines = engines

    def collect(self) -> Iterable[Metric]:
        labels = ("model_name", "engine")
        running = GaugeMetricFamily("vllm:num_requests_running", "Requests that an engine computes.", labels=labels)
        waiting = GaugeMetricFamily("vllm:num_requests_waiting", "Requests that wait in an engine.", labels=labels)
        kv_use = GaugeMetricFamily("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", labels=labels)
        preemptions = CounterMetricFamily("vllm:num_preemptions", "Requests that gave up their KV.", labels=labels)
        for engine in list(self._engines().values()):
            if engine.stats is None:
                continue
            values = (self._model_name, str(engine.rank))
            running.add_metric(values, engine.stats.running)
            waiting.add_metric(values, engine.stats.waiting)
            preemptions.add_metric(values, engine.stats.preemptions)
            if engine.ready is not None:
                kv_use.add_metric(values, engine.stats.kv_blocks_used / max(1, engine.ready.num_blocks))
        return [running, waiting, kv_use, preemptions]
