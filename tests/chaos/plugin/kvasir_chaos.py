"""The class of the workers of a chaos run, an installed package to them.

Environment: each worker leaves a file with its pid in CHAOS_FOLDER when it is in the phase CHAOS_PHASE. Then the
rank CHAOS_HELD, or "all", waits for ever, and the other ranks wait for it in an exchange. CHAOS_PAUSE: seconds
before each step.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from kvasir.worker.step import LateInput, StepInput, StepOutput
from kvasir.worker.worker import Worker
from kvasir.worker.worker_calls import worker_call


class ChaosWorker(Worker):
    def load(self, progress: Callable[[int, int], None]) -> None:
        self.reach("load")
        super().load(progress)

    @worker_call
    def warm_up(self) -> None:
        self.reach("warm-up")
        super().warm_up()

    def execute(self, step: StepInput, late: Callable[[], LateInput] | None = None) -> StepOutput:
        rows = [row for row in step.scheduled if not row.request_id.startswith("dummy-")]
        if rows:
            time.sleep(float(os.environ.get("CHAOS_PAUSE", "0")))
            self.reach("prefill" if any(row.num_new_tokens > 1 for row in rows) else "decode")
        return super().execute(step, late)

    def reach(self, phase: str) -> None:
        if os.environ.get("CHAOS_PHASE") != phase:
            return
        Path(os.environ["CHAOS_FOLDER"], str(os.getpid())).touch()
        rank = dist.get_rank() if dist.is_initialized() else 0
        if os.environ["CHAOS_HELD"] in ("all", str(rank)):
            threading.Event().wait()
