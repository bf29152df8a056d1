"""An engine in this process, with the client's conversion of its outputs to text."""

import contextlib
import signal
import sys
import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import FrameType
from typing import Final

from kvasir.client.journal import Journal
from kvasir.client.live_request import Delta, LiveRequest, RequestState
from kvasir.client.output_processor import AbortRequests, OutputProcessor, TryNextEngine
from kvasir.client.request_observer import RequestObserver
from kvasir.config.executor_settings import EXTERNAL_LAUNCHER, ExecutorConfig
from kvasir.config.resolve import ResolvedEngine
from kvasir.config.settings import EngineConfig
from kvasir.engine.build import resolve_settings, start_core
from kvasir.engine.core import EngineCore
from kvasir.executor.executor import Executor
from kvasir.executor.torchrun.launched_rank import shows_results
from kvasir.hub.model_info import ModelInfo
from kvasir.link.protocol import Call, EngineStats, FinishReason, Outputs, RequestOutput, Result
from kvasir.process.progress import Show, spinner
from kvasir.worker.worker_calls import WorkerCall, WorkerResult

_HERE: Final = "offline"


class OfflineEngine:
    """An engine for one thread at a time, from `start_engine`."""

    def __init__(
        self,
        core: EngineCore,
        executor: Executor,
        settings: ResolvedEngine,
        eos_token_ids: tuple[int, ...],
        seed: int | None = None,
        observer: RequestObserver | None = None,
    ) -> None:
        self.settings = settings
        # shared by the processes with this engine; None for a single process
        self.seed = seed
        self._core = core
        self._executor = executor
        self._journal = Journal(sys.maxsize)
        self._waiting = deque[LiveRequest]()
        self._observer = observer or RequestObserver()
        self._outputs = OutputProcessor(self._journal, self._observer, eos_token_ids)
        # a step failed, so the prefix cache may name unwritten blocks
        self._is_broken = False

    def close(self) -> None:
        self._core.close()
        self._executor.shutdown()

    def call(self, call: WorkerCall) -> list[WorkerResult]:
        """Call every worker between two steps; return the results by rank."""
        self._check()
        return self._executor.call(call)

    def call_core(self, method: str) -> Result:
        self._check()
        return self._core.call(Call(0, method))

    def stats(self) -> EngineStats:
        return self._core.stats()

    @property
    def kv_usage(self) -> float:
        return self._core.scheduler.blocks.pool.usage

    @property
    def has_work(self) -> bool:
        return bool(self._waiting) or self._core.has_work

    def add(self, requests: Iterable[LiveRequest]) -> None:
        self._check()
        self._waiting.extend(requests)

    def abort(self, requests: Collection[LiveRequest]) -> None:
        live = [request for request in requests if self._journal.get(request.request_id) is request]
        self._core.abort(_HERE, [request.request_id for request in live])
        for request in live:
            self._outputs.end(request, FinishReason.ABORT)
            self._journal.remove(request)
        self._waiting = deque(request for request in self._waiting if request not in requests)
        while not len(self._journal) and self.has_work:  # steps in flight, which hold KV blocks
            self.step()

    def step(self) -> list[LiveRequest]:
        """Compute a step, and return the requests with new output.

        After an error no request is left; if the step failed, the engine is closed.
        """
        self._check()
        try:
            self._feed()
            touched = [self._take(message.outputs) for message in self._step().values()]
        except BaseException:
            self._abandon()
            raise
        return [request for requests in touched for request in requests]

    def run(self, requests: Sequence[LiveRequest], progress: Show) -> list[Delta]:
        """Return each request's output. At the first error, end the others and raise it."""
        self._check()
        if self.has_work:
            raise RuntimeError("requests of llm_engine are running: take their outputs first")
        self.add(requests)
        finished = dict[str, Delta]()
        try:
            with _interrupts() as interrupted:
                while self.has_work:
                    for request in self.step():
                        if request.state is RequestState.FINISHED:
                            delta = request.collector.take_now()
                            assert delta is not None, request.request_id
                            finished[request.request_id] = delta
                    progress(len(finished), len(requests))
                    if interrupted.is_set():
                        raise KeyboardInterrupt
        except BaseException:
            self._abandon()
            raise
        self._core.check_idle()
        return [finished[request.request_id] for request in requests]

    def _check(self) -> None:
        if self._is_broken:
            raise RuntimeError("a step of this LLM has failed: create a new one")

    def _feed(self) -> None:
        # no more than the next step takes: the others need no memory in the engine yet
        budget, waiting = self._core.ingest.budget, self._waiting
        while waiting and self._core.num_waiting < self.settings.max_num_seqs:
            if not budget.has_room(len(waiting[0].prompt_token_ids)):
                return
            request = waiting.popleft()
            self._journal.add(request)
            self._core.add(_HERE, request.message())
            self._journal.assign(request, _HERE)
            request.trace.attempts = 1
            self._observer.request_started(request.trace)

    def _step(self) -> dict[str, Outputs]:
        self._is_broken = True
        outputs = self._core.step()
        self._is_broken = False
        return outputs

    def _take(self, outputs: list[RequestOutput]) -> list[LiveRequest]:
        self._outputs.receive(_HERE, outputs)
        while self._outputs.has_backlog:
            self._outputs.work()
        while self._outputs.actions:
            match self._outputs.actions.popleft():
                case AbortRequests(_, request_ids):
                    self._core.abort(_HERE, request_ids)
                case TryNextEngine(_, request, error, refusal):  # there is no other engine
                    self._outputs.fail(request, error, refusal)
                case action:
                    raise RuntimeError(f"the engine's outputs do not fit its requests: {action.reason}")
        touched = {output.request_id: self._journal.get(output.request_id) for output in outputs}
        live = [request for request in touched.values() if request is not None]
        for request in live:
            if request.state is RequestState.FINISHED:
                self._journal.remove(request)
        return live

    def _abandon(self) -> None:
        # the next call begins with an idle engine
        live = self._journal.live()
        self._waiting.clear()
        self._core.abort(_HERE, [request.request_id for request in live])
        for request in live:
            self._journal.remove(request)
        with contextlib.suppress(Exception):  # the first failure is raised
            while self._core.has_work and not self._is_broken:
                self._step()
        if self._is_broken:  # a thread may wait for masks that do not come, and Python for the thread at exit
            self.close()


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    # a step must not be interrupted
    event = threading.Event()
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield event
        return

    def note(number: int, frame: FrameType | None) -> None:
        event.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second one does not wait

    signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def start_engine(config: EngineConfig, model: ModelInfo, observer: RequestObserver | None = None) -> OfflineEngine:
    """Load the model. Raises ConfigError, ModelLoadError and FailureError."""
    shown = shows_results(config.executor)
    with spinner("importing torch", shown=shown):
        settings = resolve_settings(config, model)
    core, executor, settings, _ = start_core(config, settings, model, shown=shown)
    seed = _common_seed(executor, config.executor)
    return OfflineEngine(core, executor, settings, model.eos_token_ids, seed, observer)


def _common_seed(executor: Executor, config: ExecutorConfig) -> int | None:
    if config.distributed_executor_backend != EXTERNAL_LAUNCHER:
        return None
    from kvasir.executor.torchrun.external_launcher import ExternalLauncherExecutor

    assert isinstance(executor, ExternalLauncherExecutor)
    return executor.seed
