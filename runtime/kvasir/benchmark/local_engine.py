"""An engine in this process, without frontend, link or HTTP."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvasir.config.resolve import ResolvedEngine
from kvasir.config.settings import EngineConfig
from kvasir.engine.build import resolve_settings, start_core
from kvasir.engine.core import EngineCore
from kvasir.executor.executor import Executor
from kvasir.executor.torchrun.launched_rank import shows_results
from kvasir.hub.located_model import read_model
from kvasir.hub.model_info import ModelInfo
from kvasir.hub.source import fetch, normalise
from kvasir.layers.kv import KVCacheConfig
from kvasir.link.protocol import AddRequest
from kvasir.process.progress import progress_bar

# For the name of a frontend.
_HERE = "bench"


@dataclass
class RequestTimes:
    """Seconds since the requests were given, and tokens."""

    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    error: str = ""


@dataclass
class Run:
    seconds: float
    steps: list[float] = field(default_factory=list)
    """Seconds of each step."""
    requests: dict[str, RequestTimes] = field(default_factory=dict)

    @property
    def output_tokens(self) -> int:
        return sum(request.tokens for request in self.requests.values())


class LocalEngine:
    """An engine from `start_engine`."""

    def __init__(
        self,
        core: EngineCore,
        executor: Executor,
        model: ModelInfo,
        settings: ResolvedEngine,
        cache: KVCacheConfig,
    ) -> None:
        self._core = core
        self.groups = cache.groups
        self._executor = executor
        self.shows_results = shows_results(settings.executor)
        self.model = model
        self.settings = settings

    def close(self) -> None:
        """End the worker processes."""
        self._core.close()
        self._executor.shutdown()

    def run(self, requests: Sequence[AddRequest], progress: Callable[[int, int], None]) -> Run:
        """Give all requests at once, and step until the last has ended; `progress` gets the number of ended
        ones."""
        core, times, ended = self._core, {r.request_id: RequestTimes() for r in requests}, 0
        result = Run(0.0, requests=times)
        began = before = time.perf_counter()
        for request in requests:
            core.add(_HERE, request)
        while core.has_work:
            outputs = core.step()
            now = time.perf_counter()
            result.steps.append(now - before)
            before = now
            for output in outputs[_HERE].outputs if outputs else ():
                request_times = times[output.request_id]
                request_times.first = request_times.first or now - began
                request_times.last = now - began
                request_times.tokens += len(output.token_ids)
                request_times.error = output.error
                if output.finish_reason is not None:
                    ended += 1
                    progress(ended, len(requests))
        result.seconds = time.perf_counter() - began
        return result


def start_engine(config: EngineConfig) -> LocalEngine:
    """Fetch and load the model. Raises ConfigError and ModelLoadError as an engine would."""
    shown = shows_results(config.executor)
    source = normalise(config.model.source)
    with progress_bar(f"fetching {config.model.source}", in_bytes=True, shown=shown) as progress:
        path = fetch(
            source,
            weights=config.device.load_format != "dummy",
            download_dir=config.model.download_dir,
            progress=progress,
        )
    model = read_model(config.model, path)
    settings = resolve_settings(config, model)
    core, executor, settings, cache = start_core(config, settings, model, shown=shown)
    return LocalEngine(core, executor, model, settings, cache)
