"""Metrics of the linked engines, from the last report of each, collected at each scrape."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kvasir.client.dispatch.adapter_places import AdaptersInUse
from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.process.metric_families import Series, counter, draft_metrics, gauge

_MODEL = ("model_name",)
_LABELS = ("model_name", "engine")
_NO_ENGINE = ""

Engines = Callable[[], Mapping[str, RemoteEngine]]


class LinkedEngines(Collector):
    """Live and held requests of this frontend, and its view of its engines."""

    def __init__(self, model_name: str, engines: Engines, live: Callable[[], int], held: Callable[[], int]) -> None:
        self._model_name = model_name
        self._engines = engines
        self._live = live
        self._held = held

    def collect(self) -> Iterator[Metric]:
        live, held = ([((self._model_name,), number())] for number in (self._live, self._held))
        engines = [((self._model_name, str(each.rank)), each) for each in _one_of_each_rank(self._engines())]
        yield gauge("kvasir:live_requests", "Requests that this frontend is generating for.", _MODEL, live)
        text = "Requests that wait in this frontend while no engine is ready."
        yield gauge("kvasir:held_requests", text, _MODEL, held)
        usable = [(labels, each.usable) for labels, each in engines]
        yield gauge("kvasir:engine_usable", "1 for an engine that takes requests.", _LABELS, usable)
        skipped = [(labels, each.agreement.skipped) for labels, each in engines]
        text = "Messages of a newer engine that this frontend skipped."
        yield counter("kvasir:unknown_messages", text, _LABELS, skipped)


class AdapterRequests(Collector):
    """The LoRA adapters of this frontend's requests. Gateways take the series with the highest value."""

    def __init__(self, in_use: Callable[[], AdaptersInUse]) -> None:
        self._in_use = in_use

    def collect(self) -> Iterator[Metric]:
        found = self._in_use()
        names = [",".join(sorted(each)) for each in (found.running, found.waiting)]
        labels = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
        text = "LoRA adapters of requests, as labels; the value is the Unix time."
        yield gauge("vllm:lora_requests_info", text, labels, [((str(found.max_loras), *names), time.time())])


class FrontendQueue(Collector):
    """Requests without an engine, for the port without the engines' load."""

    def __init__(self, model_name: str, waiting: Callable[[], int]) -> None:
        self._model_name = model_name
        self._waiting = waiting

    def collect(self) -> Iterator[Metric]:
        yield self.waiting([])

    def waiting(self, in_engines: Sequence[tuple[tuple[str, str], int]]) -> Metric:
        text = "Requests that wait in an engine, or in this frontend (with an empty label engine)."
        own = ((self._model_name, _NO_ENGINE), self._waiting())
        return gauge("vllm:num_requests_waiting", text, _LABELS, [own, *in_engines])


class EngineLoads(Collector):
    """The queue, and the load of engines that chose this frontend to show it."""

    def __init__(self, model_name: str, engines: Engines, waiting: Callable[[], int]) -> None:
        self._model_name = model_name
        self._engines = engines
        self._queue = FrontendQueue(model_name, waiting)

    def collect(self) -> Iterator[Metric]:
        shown = [
            ((self._model_name, str(engine.rank)), engine)
            for engine in _one_of_each_rank(self._engines())
            if engine.shows_load
        ]
        ages = [(labels, engine.step_age) for labels, engine in shown]
        text = "How long an engine's step has taken so far."
        yield gauge("kvasir:engine_step_age_seconds", text, _LABELS, ages)
        yield from self._loads(shown)
        yield gauge(
            "vllm:cache_config_info",
            "An engine's KV cache: tokens per block, and blocks.",
            (*_LABELS, "block_size", "num_gpu_blocks"),
            [
                ((*labels, str(engine.capacity.block_size), str(engine.capacity.num_blocks)), 1)
                for labels, engine in shown
                if engine.capacity is not None
            ],
        )

    def _loads(self, shown: Sequence[tuple[tuple[str, str], RemoteEngine]]) -> Iterator[Metric]:
        loads = [(labels, engine.stats, engine.capacity) for labels, engine in shown if engine.stats is not None]
        running: Series = [(labels, stats.running) for labels, stats, _ in loads]
        yield gauge("vllm:num_requests_running", "Requests that an engine computes.", _LABELS, running)
        yield self._queue.waiting([(labels, stats.waiting) for labels, stats, _ in loads])
        used = [(labels, stats.kv_blocks_used / max(1, size.num_blocks)) for labels, stats, size in loads if size]
        text = "Share of an engine's KV blocks in use, 0 to 1."
        yield gauge("vllm:kv_cache_usage_perc", text, _LABELS, used)
        preempted = [(labels, stats.preemptions) for labels, stats, _ in loads]
        yield counter("vllm:num_preemptions", "Requests that gave up their KV.", _LABELS, preempted)
        corrupted = [(labels, stats.corrupted) for labels, stats, _ in loads]
        text = "Requests that ended because their logits were not numbers."
        yield counter("vllm:corrupted_requests", text, _LABELS, corrupted)
        drafts = [(labels, stats.drafts) for labels, stats, _ in loads if stats.drafts is not None]
        if drafts:
            yield from draft_metrics(
                _LABELS, [(labels, each.drafts, each.tokens, each.accepted) for labels, each in drafts]
            )


def _one_of_each_rank(engines: Mapping[str, RemoteEngine]) -> Iterable[RemoteEngine]:
    """Return each rank's usable incarnation while an old one drains."""
    known = sorted(engines.values(), key=lambda engine: engine.usable)
    return {engine.rank: engine for engine in known}.values()
