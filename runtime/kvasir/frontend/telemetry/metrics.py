"""Prometheus metrics under vLLM's names; docs/metrics.md describes each."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple

from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    Counter,
    Histogram,
    generate_latest,
)

from kvasir.client.request_observer import RequestObserver, Trace
from kvasir.frontend.telemetry.engine_load import (
    EngineLoads,
    Engines,
    FrontendQueue,
    LinkedEngines,
)
from kvasir.frontend.telemetry.load_window import LoadWindow
from kvasir.link.protocol import FinishReason
from kvasir.process.metric_families import SecondName

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# `engine` is the rank, as in vLLM, so that a new incarnation continues the series
LABELS = ("model_name", "engine")

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
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_COUNT_BUCKETS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
_N_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)
_PREEMPTION_BUCKETS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
_HTTP_BUCKETS = (0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": ("From a request's start to its first token.", _TTFT_BUCKETS),
    "vllm:inter_token_latency_seconds": ("Time between two tokens of a request.", _TOKEN_BUCKETS),
    "vllm:e2e_request_latency_seconds": ("From a request's start to its end.", _REQUEST_BUCKETS),
    "vllm:request_queue_time_seconds": ("In the queues of the frontend and of the engine.", _REQUEST_BUCKETS),
    "vllm:request_prefill_time_seconds": ("From the end of the queue to the first token.", _REQUEST_BUCKETS),
    "vllm:request_decode_time_seconds": ("From the first token to the last.", _REQUEST_BUCKETS),
    "vllm:request_inference_time_seconds": ("From the end of the queue to the last token.", _REQUEST_BUCKETS),
    "vllm:request_time_per_output_token_seconds": ("Mean of a request's times between tokens.", _TOKEN_BUCKETS),
    "vllm:request_prompt_tokens": ("Prompt tokens of a request.", _COUNT_BUCKETS),
    "vllm:request_generation_tokens": ("Tokens that a request generated.", _COUNT_BUCKETS),
    "vllm:request_max_num_generation_tokens": ("Tokens of the longest choice of a prompt.", _COUNT_BUCKETS),
    "vllm:request_num_preemptions": ("How often a request was preempted.", _PREEMPTION_BUCKETS),
    "vllm:request_params_max_tokens": ("Tokens that a request could have generated.", _COUNT_BUCKETS),
    "vllm:request_params_n": ("Choices that were generated for a prompt.", _N_BUCKETS),
}
_COUNTERS_OF_ENGINES = {
    "vllm:prompt_tokens": "Prompt tokens of requests given to engines.",
    "vllm:prompt_tokens_cached": "Those of them that an engine found in its prefix cache.",
    "vllm:generation_tokens": "Tokens generated.",
    "vllm:prefix_cache_queries": "Prompt tokens that were looked up in the prefix cache.",
    "vllm:prefix_cache_hits": "Those of them that were found.",
}


class Totals(NamedTuple):
    prompt_tokens: int
    generation_tokens: int
    prefix_cache_queries: int
    prefix_cache_hits: int


class Metrics(RequestObserver):
    """The metrics of a frontend, in registries of their own."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self.registry = CollectorRegistry()
        self._registry_of_engines = CollectorRegistry()
        # replaces the engines' metrics on the probe port
        self._registry_of_probe = CollectorRegistry()
        for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
            self.registry.register(collector)
        self._histograms = {
            name: Histogram(name, help, LABELS, buckets=buckets, registry=self.registry)
            for name, (help, buckets) in _HISTOGRAMS.items()
        }
        between_tokens = self._histograms["vllm:inter_token_latency_seconds"]
        self.registry.register(SecondName(between_tokens, "vllm:time_per_output_token_seconds"))
        self._counters = {
            name: Counter(name, help, LABELS, registry=self._registry_of_engines)
            for name, help in _COUNTERS_OF_ENGINES.items()
        }
        self._ended = Counter(
            "vllm:request_success",
            "Requests that ended, by reason; abort: the client left, error: it failed.",
            (*LABELS, "finished_reason"),
            registry=self.registry,
        )
        self._rejected = Counter(
            "vllm:admission_rejections",
            "Requests answered with 429: too many were in flight.",
            ("model_name",),
            registry=self.registry,
        ).labels(model_name)
        self._moves = Counter(
            "kvasir:migrations",
            "Requests that another engine continues; exact: one of the same numerics class.",
            ("model_name", "exact", "reason"),
            registry=self.registry,
        )
        self._stall = Histogram(
            "kvasir:migration_stall_seconds",
            "From the loss of a request's engine to its next token.",
            ("model_name",),
            buckets=_TTFT_BUCKETS,
            registry=self.registry,
        ).labels(model_name)
        self._held_seconds = Histogram(
            "kvasir:request_held_seconds",
            "Time that a request waited while no engine was ready.",
            ("model_name",),
            buckets=_REQUEST_BUCKETS,
            registry=self.registry,
        ).labels(model_name)
        self._http = Counter(
            "http_requests",
            "HTTP requests by route, method and class of status.",
            ("handler", "method", "status"),
            registry=self.registry,
        )
        self._http_seconds = Histogram(
            "http_request_duration_seconds",
            "From the start of an HTTP request to the end of its answer.",
            ("handler", "method"),
            buckets=_HTTP_BUCKETS,
            registry=self.registry,
        )
        self._http_series: dict[tuple[str, str, str], tuple[Counter, Histogram]] = {}
        self._ranks: dict[int, _Series] = {}
        self.load = LoadWindow()

    def report_engines(
        self, engines: Engines, live: Callable[[], int], held: Callable[[], int], waiting: Callable[[], int]
    ) -> None:
        """Add the engines' load and the numbers of requests, read at each scrape."""
        self.registry.register(LinkedEngines(self._model_name, engines, live, held))
        self._registry_of_engines.register(EngineLoads(self._model_name, engines, waiting))
        self._registry_of_probe.register(FrontendQueue(self._model_name, waiting))

    def render(self) -> bytes:
        """Return the metrics of the HTTP port."""
        return generate_latest(self.registry) + generate_latest(self._registry_of_engines)

    def render_own(self) -> bytes:
        """Return the probe port's metrics, which no engine shows."""
        return generate_latest(self.registry) + generate_latest(self._registry_of_probe)

    def totals(self) -> Totals:
        return Totals(*(self._total(f"vllm:{name}") for name in Totals._fields))

    def _total(self, name: str) -> int:
        samples = (sample for metric in self._counters[name].collect() for sample in metric.samples)
        return int(sum(sample.value for sample in samples if sample.name == f"{name}_total"))

    def http_request_ended(self, route: str, method: str, status: int, seconds: float) -> None:
        key = (route, method, f"{status // 100}xx")
        series = self._http_series.get(key)
        if series is None:
            series = self._http_series[key] = (self._http.labels(*key), self._http_seconds.labels(route, method))
        series[0].inc()
        series[1].observe(seconds)
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            self._rejected.inc()

    # ------------------------------------------------------------------------------------------ RequestObserver

    def hold_ended(self, seconds: float) -> None:
        self._held_seconds.observe(seconds)

    def request_started(self, trace: Trace) -> None:
        if trace.attempts == 1:
            self._series(trace).prompt_tokens.inc(trace.prompt_tokens)
            self.load.request_started(trace.waited)

    def request_moved(self, trace: Trace, reason: str, exact: bool) -> None:
        self._moves.labels(self._model_name, str(exact).lower(), reason).inc()

    def request_resumed(self, trace: Trace, seconds: float) -> None:
        self._stall.observe(seconds)

    def tokens_received(self, trace: Trace, count: int, seconds: float | None) -> None:
        series = self._series(trace)
        series.generation_tokens.inc(count)
        if seconds is not None:
            for _ in range(count):
                series.between_tokens.observe(seconds / count)
        elif trace.first_token is not None:
            series.first_token.observe(trace.first_token - trace.started)
            self.load.first_token(trace.first_token - trace.started)

    def request_finished(self, trace: Trace) -> None:
        self._series(trace).finish(trace)
        self.load.request_finished(trace.reason)

    def _series(self, trace: Trace) -> "_Series":
        series = self._ranks.get(trace.rank)
        if series is None:
            labels = (self._model_name, str(trace.rank))
            series = self._ranks[trace.rank] = _Series(
                {name: histogram.labels(*labels) for name, histogram in self._histograms.items()},
                {name: counter.labels(*labels) for name, counter in self._counters.items()},
                {reason: self._ended.labels(*labels, reason.value) for reason in FinishReason},
            )
        return series


class _Series:
    def __init__(
        self,
        histograms: Mapping[str, Histogram],
        counters: Mapping[str, Counter],
        ended: Mapping[FinishReason, Counter],
    ) -> None:
        self._histograms = histograms
        self._ended = ended
        self._queries = counters["vllm:prefix_cache_queries"]
        self._hits = counters["vllm:prefix_cache_hits"]
        self._cached = counters["vllm:prompt_tokens_cached"]
        self.prompt_tokens = counters["vllm:prompt_tokens"]
        self.generation_tokens = counters["vllm:generation_tokens"]
        self.first_token = histograms["vllm:time_to_first_token_seconds"]
        self.between_tokens = histograms["vllm:inter_token_latency_seconds"]

    def finish(self, trace: Trace) -> None:
        assert trace.reason is not None
        assert trace.finished is not None
        self._ended[trace.reason].inc()
        if trace.cached_tokens is not None and trace.params is not None:
            self._queries.inc(trace.prompt_tokens)
            self._hits.inc(trace.cached_tokens)
            self._cached.inc(trace.cached_tokens)
        self._observe("e2e_request_latency_seconds", trace.finished - trace.started)
        self._observe("request_prompt_tokens", trace.prompt_tokens)
        self._observe("request_generation_tokens", trace.output_tokens)
        self._observe("request_num_preemptions", trace.num_preemptions)
        self._longest_choice(trace)
        if trace.params is not None:
            self._observe("request_params_max_tokens", trace.params.max_tokens)
        if trace.choices is not None:
            self._observe("request_params_n", trace.choices)
        if trace.first_token is not None and trace.last_token is not None:
            self._phases(trace, trace.first_token, trace.last_token)

    def _longest_choice(self, trace: Trace) -> None:
        """Observe the prompt's longest choice, when all have ended."""
        siblings, longest = trace.siblings, trace.output_tokens
        if siblings is not None:
            siblings.unfinished -= 1
            longest = siblings.most_tokens = max(siblings.most_tokens, longest)
            if siblings.unfinished:
                return
        self._observe("request_max_num_generation_tokens", longest)

    def _phases(self, trace: Trace, first: float, last: float) -> None:
        self._observe("request_decode_time_seconds", last - first)
        if trace.output_tokens > 1:
            self._observe("request_time_per_output_token_seconds", (last - first) / (trace.output_tokens - 1))
        if trace.queue_seconds is not None:
            queued = max(0.0, min(trace.waited_seconds + trace.queue_seconds, first - trace.started))
            self._observe("request_queue_time_seconds", queued)
            self._observe("request_prefill_time_seconds", first - trace.started - queued)
            self._observe("request_inference_time_seconds", last - trace.started - queued)

    def _observe(self, name: str, value: float) -> None:
        self._histograms[f"vllm:{name}"].observe(value)
