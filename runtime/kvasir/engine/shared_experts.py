"""SharedExpertsGroup: engines that share experts (expert parallelism over data-parallel ranks).

They start together, and end together: if one drains, all drain, and the loss of one is an error in all.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kvasir.config.options import ConfigError
from kvasir.config.resolve import ResolvedEngine
from kvasir.config.settings import EngineConfig
from kvasir.engine.inbox import Inbox
from kvasir.engine.waves import LockStep
from kvasir.hub.model_info import ModelInfo
from kvasir.version import __version__

if TYPE_CHECKING:  # imports torch, which engines with worker processes do not need
    from kvasir.executor.in_process import InProcessExecutor

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
