"""A script: the engine process as it is, but with the fake executor, so that it starts without torch.

python engine_with_fake_executor.py serve|slow|fail|idle-fail|hang|load|slow-end|warm  MODEL [option …]
"""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from kvasir.cli.engine import config_of, parser
from kvasir.config.hardware.device_facts import DeviceFacts
from kvasir.config.resolve import ResolvedEngine
from kvasir.engine import build, engine_process
from kvasir.layers.kv import KVCacheConfig
from kvasir.worker.step import StepInput, StepOutput
from runtime.engine.fake_executor import FakeExecutor

MODE = sys.argv[1]


class SlowEnd:
    """Makes Python's own end take longer than an engine may take to stop."""

    def __init__(self) -> None:
        self._sleep, self._seconds = time.sleep, 1.5 * engine_process.STOP_SECONDS

    def __del__(self) -> None:
        self._sleep(self._seconds)


class ProcessExecutor(FakeExecutor):
    def __init__(self, settings: ResolvedEngine, model: object, remote: object) -> None:
        super().__init__(
            block_size=settings.block_size,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
        )
        self._num_blocks = settings.num_blocks or 256

    def start(self, progress: Callable[[int, int], None], failed: Callable[[Exception], None]) -> None:
        progress(1, 3)
        self._failed = failed
        while MODE in ("load", "slow-end"):  # until it is stopped
            time.sleep(0.02)
            progress(2, 3)

    def warm_up(self) -> None:
        while MODE == "warm":  # Python code between the waits, as in a step: a wait without end may miss a signal
            time.sleep(0.05)
        super().warm_up()

    def kv_layout(self) -> KVCacheConfig:
        return KVCacheConfig(super().kv_layout().groups, self._num_blocks)

    def work_ahead(self) -> bool:
        if MODE == "idle-fail":  # as a thread does that waits for the worker's end
            threading.Timer(0.2, self._failed, [RuntimeError("a worker died")]).start()
        return False

    def execute(self, step: StepInput) -> StepOutput:
        if MODE == "fail":
            raise RuntimeError("device lost")
        if MODE == "slow":
            time.sleep(0.02)
        if MODE == "hang":
            threading.Event().wait()
        return super().execute(step)


slow_end = SlowEnd() if MODE == "slow-end" else None
vars(build)["device_facts"] = lambda config: DeviceFacts("cpu", "fake", 2, 2**34, False)
vars(engine_process)["executor_for"] = ProcessExecutor
sys.exit(engine_process.run_engine(config_of(parser().parse_args(sys.argv[2:]))))
