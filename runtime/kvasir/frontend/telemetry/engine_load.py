"""Metrics of the linked engines, from the last report of each, collected at each scrape."""

import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvasir.client.dispatch.adapter_places import AdaptersInUse
from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.process.draft_metrics import draft_metrics

_LABELS = ("model_name", "engine")
_NO_ENGINE = ""
_WAITING = "Requests that wait in an engine, or in this frontend (with an empty label engine)."

Engines = Callable[[], Mapping[str, RemoteEngine]]


class LinkedEngines(Collector):
    """Live and held requests of this frontend, and its view of its engines."""

    def __init__(self, model_name: str, engines: Engines, live: Callable[[], int], held: Callable[[], int]) -> None:
        self._model_name = model_name
        self._engines = engines
        self._live = live
        self._held = held

    def collect(self) -> Iterable[Metric]:
        live = GaugeMetricFamily(
            "kvasir:live_requests", "Requests that this frontend is generating for.", labels=("model_name",)
        )
        live.add_metric((self._model_name,), self._live())
        held = GaugeMetricFamily(
            "kvasir:held_requests",
            "Requests that wait in this frontend while no engine is ready.",
            labels=("model_name",),
        )
        held.add_metric((self._model_name,), self._held())
        usable = GaugeMetricFamily("kvasir:engine_usable", "1 for an engine that takes requests.", labels=_LABELS)
        unknown = CounterMetricFamily(
            "kvasir:unknown_messages", "Messages of a newer engine that this frontend skipped.", labels=_LABELS
        )
        for engine in _one_of_each_rank(self._engines()):
            labels = (self._model_name, str(engine.rank))
            unknown.add_metric(labels, engine.agreement.skipped)
            usable.add_metric(labels, engine.usable)
        return [live, held, usable, unknown]


class AdapterRequests(Collector):
    """The LoRA adapters of this frontend's requests. Gateways take the series with the highest value."""

    def __init__(self, in_use: Callable[[], AdaptersInUse]) -> None:
        self._in_use = in_use

    def collect(self) -> Iterable[Metric]:
        found = self._in_use()
        info = GaugeMetricFamily(
            "vllm:lora_requests_info",
            "LoRA adapters of requests, as labels; the value is the Unix time.",
            labels=("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
        )
        names = [",".join(sorted(each)) for each in (found.running, found.waiting)]
        info.add_metric((str(found.max_loras), *names), time.time())
        return [info]


class FrontendQueue(Collector):
    """Requests without an engine, for the port without the engines' load."""

    def __init__(self, model_name: str, waiting: Callable[[], int]) -> None:
        self._model_name = model_name
        self._waiting = waiting

    def collect(self) -> Iterable[Metric]:
        waiting = GaugeMetricFamily("vllm:num_requests_waiting", _WAITING, labels=_LABELS)
        waiting.add_metric((self._model_name, _NO_ENGINE), self._waiting())
        return [waiting]


class EngineLoads(Collector):
    """The queue, and the load of engines that chose this frontend to show it."""

    def __init__(self, model_name: str, engines: Engines, waiting: Callable[[], int]) -> None:
        self._model_name = model_name
        self._engines = engines
        self._waiting = waiting

    def collect(self) -> Iterable[Metric]:
        engines = [engine for engine in _one_of_each_rank(self._engines()) if engine.shows_load]
        step_age = GaugeMetricFamily(
            "kvasir:engine_step_age_seconds", "How long an engine's step has taken so far.", labels=_LABELS
        )
        for engine in engines:
            step_age.add_metric(self._labels(engine), engine.step_age)
        return [step_age, *self._loads(engines), *self._drafts(engines), self._cache_config(engines)]

    def _loads(self, engines: Iterable[RemoteEngine]) -> list[Metric]:
        running = GaugeMetricFamily(
            "vllm:num_requests_running", "Requests that an engine computes.", labels=_LABELS
        )
        waiting = GaugeMetricFamily("vllm:num_requests_waiting", _WAITING, labels=_LABELS)
        waiting.add_metric((self._model_name, _NO_ENGINE), self._waiting())
        kv_use = GaugeMetricFamily(
            "vllm:kv_cache_usage_perc", "Share of an engine's KV blocks in use, 0 to 1.", labels=_LABELS
        )
        preemptions = CounterMetricFamily("vllm:num_preemptions", "Requests that gave up their KV.", labels=_LABELS)
        corrupted = CounterMetricFamily(
            "vllm:corrupted_requests", "Requests that ended because their logits were not numbers.", labels=_LABELS
        )
        for engine in engines:
            if engine.stats is None:
                continue
            labels = self._labels(engine)
            running.add_metric(labels, engine.stats.running)
            waiting.add_metric(labels, engine.stats.waiting)
            preemptions.add_metric(labels, engine.stats.preemptions)
            corrupted.add_metric(labels, engine.stats.corrupted)
            if engine.capacity is not None:
                kv_use.add_metric(labels, engine.stats.kv_blocks_used / max(1, engine.capacity.num_blocks))
        return [running, waiting, kv_use, preemptions, corrupted]

    def _drafts(self, engines: Iterable[RemoteEngine]) -> list[Metric]:
        series = [
            (self._labels(engine), drafts.drafts, drafts.tokens, drafts.accepted)
            for engine in engines
            if engine.stats is not None and (drafts := engine.stats.drafts) is not None
        ]
        return draft_metrics(_LABELS, series) if series else []

    def _cache_config(self, engines: Iterable[RemoteEngine]) -> Metric:
        info = GaugeMetricFamily(
            "vllm:cache_config_info",
            "An engine's KV cache: tokens per block, and blocks.",
            labels=(*_LABELS, "block_size", "num_gpu_blocks"),
        )
        for engine in engines:
            if engine.capacity is not None:
                sizes = (str(engine.capacity.block_size), str(engine.capacity.num_blocks))
                info.add_metric((*self._labels(engine), *sizes), 1)
        return info

    def _labels(self, engine: RemoteEngine) -> tuple[str, str]:
        return self._model_name, str(engine.rank)


def _one_of_each_rank(engines: Mapping[str, RemoteEngine]) -> list[RemoteEngine]:
    """Return each rank's usable incarnation while an old one drains."""
    known = sorted(engines.values(), key=lambda engine: engine.usable)
    return list({engine.rank: engine for engine in known}.values())
