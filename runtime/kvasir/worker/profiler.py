"""Records traces with torch's profiler. Without a profile, phases cost nothing."""

import logging
import os
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from kvasir.config.profiler import ProfilerConfig
from kvasir.worker.worker_calls import CallError, worker_call

log = logging.getLogger(__name__)

_NOTHING: Final = nullcontext()
# In progress, at most one per worker.
_profiles: Final[set[profile]] = set()


def phase(name: str) -> AbstractContextManager[object]:
    # On NVIDIA GPUs an NVTX range too.
    return record_function(name) if _profiles else _NOTHING


class Profiler:
    def __init__(self, config: ProfilerConfig | None, device: str, name: str) -> None:
        # `device` is cpu or cuda; `name` begins the file names.
        self._config = config
        self._device = device
        self._name = name
        # In progress, or not written yet.
        self._profile: profile | None = None
        self._steps_left = 0

    @worker_call
    def start_profile(self) -> None:
        # Raises CallError without --profiler-config, or during a profile.
        config = self._config
        if config is None:
            raise CallError("profiles are off: start the engine with --profiler-config")
        if self._profile is not None:
            raise CallError("a profile is recorded already: stop it first")
        try:
            Path(config.torch_profiler_dir).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CallError(f"torch_profiler_dir cannot be used: {error}") from error
        activities = [ProfilerActivity.CPU]
        if self._device == "cuda":
            activities.append(ProfilerActivity.CUDA)
        started = profile(
            activities=activities,
            with_stack=config.torch_profiler_with_stack,
            record_shapes=config.torch_profiler_record_shapes,
            profile_memory=config.torch_profiler_with_memory,
            with_flops=config.torch_profiler_with_flops,
        )
        started.start()
        _profiles.add(started)
        self._profile, self._steps_left = started, config.max_iterations
        log.info("a profile is recorded, of %d steps at most", config.max_iterations)

    @worker_call
    def stop_profile(self) -> str:
        # Raises CallError if there is none, or it cannot be written.
        recorded, self._profile = self._profile, None
        if recorded is None or self._config is None:
            raise CallError("no profile is recorded: start one first")
        name = f"{self._name}.{os.getpid()}.{time.time_ns()}.pt.trace.json"
        path = Path(self._config.torch_profiler_dir, name + ".gz" * self._config.torch_profiler_use_gzip)
        try:
            if self._steps_left:
                self._end(recorded)
            recorded.export_chrome_trace(str(path))
        except Exception as error:
            raise CallError(f"the profile could not be written: {error}") from error
        log.info("a profile was written to %s", path)
        return str(path)

    def after_step(self) -> None:
        if self._profile is None or not self._steps_left:
            return
        self._steps_left -= 1
        if not self._steps_left:
            try:
                self._end(self._profile)
            except Exception:  # requests go on
                log.exception("the profile could not be ended")

    def _end(self, recorded: profile) -> None:
        _profiles.discard(recorded)
        if self._device == "cuda":
            torch.cuda.synchronize()
        recorded.stop()
