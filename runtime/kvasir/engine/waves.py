"""Waves: engines that share experts run their forward passes together.

In a *wave* all engines take turns; one without rows joins with an empty pass (docs/design/parallel.md).
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kvasir.config.options import ConfigError
from kvasir.config.resolve import ResolvedEngine
from kvasir.config.settings import EngineConfig
from kvasir.engine.inbox import Inbox
from kvasir.hub.model_info import ModelInfo
from kvasir.version import __version__

if TYPE_CHECKING:  # imports torch, which engines with worker processes do not need
    from kvasir.executor.in_process import InProcessExecutor

log = logging.getLogger(__name__)

SYNC_TURNS: Final = 16  # between two decisions: more cost empty passes, fewer cost exchanges


class Flags(NamedTuple):
    """State of one engine; a decision sets each flag that any engine has set."""

    work: bool = False
    drains: bool = False
    stays: bool = True  # not drained, or may still receive a request
    overdue: bool = False  # its drain timeout is over


class Waves(Protocol):
    """Belongs to the loop's thread."""

    @property
    def running(self) -> bool:
        """Return whether the loop takes turns without work."""
        ...

    @property
    def agreed(self) -> Flags: ...

    def begin(self, wave: int) -> None:
        """Begin this wave unless it is running or over."""
        ...

    def wake(self) -> None: ...

    def before_step(self, has_requests: bool) -> None: ...

    def after_step(self, own: Flags, passed: bool) -> None:
        """Complete a turn. `passed`: with a forward pass."""
        ...

    def drain(self) -> None: ...

    def may_end(self, own: Flags) -> bool: ...


class Independent:
    running = False
    agreed = Flags()

    def begin(self, wave: int) -> None:
        pass

    def wake(self) -> None:
        pass

    def before_step(self, has_requests: bool) -> None:
        pass

    def after_step(self, own: Flags, passed: bool) -> None:
        pass

    def drain(self) -> None:
        pass

    def may_end(self, own: Flags) -> bool:
        return not own.stays


class WaveGroup(Protocol):
    """All methods raise RuntimeError if an engine is gone."""

    def call_next(self, wave: int) -> None: ...

    def wait_for_call(self) -> int:
        """Return the next number from the engine before. Called in a thread of its own."""
        ...

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """Return for each flag whether any engine has set it. All engines call it together."""
        ...


class LockStep:
    def __init__(
        self,
        group: WaveGroup,
        empty_pass: Callable[[], None],
        called: Callable[[int], None],
        failed: Callable[[Exception], None],
        sync_turns: int = SYNC_TURNS,
    ) -> None:
        # A thread passes calls to `called`, and the loss of an engine to `failed`; both must reach the loop.
        self.running = False
        self.agreed = Flags()
        self.wave = 0  # runs or comes next
        self._group = group
        self._empty_pass = empty_pass
        self._called = called
        self._failed = failed
        self._sync_turns = sync_turns
        self._turns = 0
        self._draining = False
        self.listener = threading.Thread(target=self._listen, name="waves", daemon=True)
        self.listener.start()

    def begin(self, wave: int) -> None:
        if wave > self.wave:
            raise RuntimeError(
                f"the engines of the group are out of step: wave {wave} was called and wave {self.wave} comes next"
            )
        if wave == self.wave and not self.running:
            self.running, self._turns = True, 0
            # one call per engine and wave, even if several begin at once
            self._group.call_next(wave)

    def wake(self) -> None:
        self.begin(self.wave)

    def before_step(self, has_requests: bool) -> None:
        if not self.running and has_requests:
            self.begin(self.wave)

    def after_step(self, own: Flags, passed: bool) -> None:
        if not self.running:
            assert not passed, "a forward pass outside of a wave"
            return
        if not passed:
            self._empty_pass()
        self._turns += 1
        if not self.agreed.drains and self._turns % self._sync_turns:
            return
        self.agreed = Flags(*self._group.any(own))
        if not self.agreed.work and not self.agreed.drains:
            self.running = False
            self.wave += 1

    def drain(self) -> None:
        self._draining = True
        self.begin(self.wave)

    def may_end(self, own: Flags) -> bool:
        return self.agreed.drains and not self.agreed.stays

    def _listen(self) -> None:
        try:
            while True:
                self._called(self._group.wait_for_call())
        except Exception as error:
            # the loop notices the loss in the exchanges of the wave
            if self._draining:
                log.info("the group of engines ends")
            else:
                self._failed(error)


START_LIMIT_SECONDS: Final = 3600.0  # at each point: another engine may download the weights


class SharedExpertsGroup:
    def __init__(
        self, config: EngineConfig, settings: ResolvedEngine, model: ModelInfo, waiting: Callable[[str], None]
    ) -> None:
        """Wait for all engines and connect to them. Raises ConfigError, also for options that differ."""
        from kvasir.models.check_ranks import check_ranks
        from kvasir.parallel.engine_groups import connect
        from kvasir.parallel.meeting_point import MeetingPoint
        from kvasir.parallel.parallel_state import ParallelState

        parallel = config.parallel
        self._waiting = waiting
        self._loss: Exception | None = None
        _check_options(settings)
        check_ranks(model, settings.max_model_len, 1, True, engines=parallel.data_parallel_size)
        rank, size = parallel.data_parallel_rank, parallel.data_parallel_size
        self.size = size
        address, port = parallel.data_parallel_address, parallel.data_parallel_rpc_port
        self._meeting = MeetingPoint(address, port, rank, size, START_LIMIT_SECONDS, self._wait)
        self._meeting.compare(
            {
                "version of Kvasir": __version__,
                "model": model.fingerprint,
                "weights": model.weights,
                "--data-parallel-size": str(size),
                "--dtype": settings.dtype,
                "--batch-invariant": str(settings.batch_invariant),
                "--device": settings.device,
                "--load-format": settings.load_format,
                "--max-model-len": str(settings.max_model_len),
                "--worker-cls": str(settings.executor.worker_cls),
                "--worker-extension-cls": str(settings.executor.worker_extension_cls),
            }
        )
        experts, self._engines = connect(self._meeting, settings.executor.worker_timeout)
        self._parallel = ParallelState(expert_parallel=True, data=experts)

    def wait_until_loaded(self) -> None:
        self._meeting.wait_for_all("loaded")

    def new_executor(self, settings: ResolvedEngine, model: ModelInfo, inbox: Inbox) -> "InProcessExecutor":
        """Return an executor without a started worker; the loss of an engine is noticed from now on."""
        from kvasir.executor.in_process import InProcessExecutor

        def lost(error: Exception) -> None:
            self._loss = error
            inbox.fail(error)

        executor = InProcessExecutor(settings, model, self._parallel)
        self.waves = LockStep(self._engines, executor.empty_pass, inbox.call_wave, lost)
        return executor

    def _wait(self, text: str) -> None:
        if self._loss is not None:
            raise self._loss
        self._waiting(text)


def _check_options(settings: ResolvedEngine) -> None:
    executor = settings.executor
    wrong = {
        f"--tensor-parallel-size {executor.tensor_parallel_size}": executor.tensor_parallel_size > 1,
        f"--pipeline-parallel-size {executor.pipeline_parallel_size}": executor.pipeline_parallel_size > 1,
        f"--distributed-executor-backend {executor.distributed_executor_backend}": (
            executor.distributed_executor_backend not in (None, "uni")
        ),
        "--async-scheduling": settings.async_scheduling,
        f"--device {settings.device}": settings.device != "cpu",
    }
    for option, given in wrong.items():
        if given:
            raise ConfigError(
                f"{option} is not supported for engines that share experts (--data-parallel-size, "
                "--enable-expert-parallel), which have one worker each, on CPUs: leave it out"
            )
