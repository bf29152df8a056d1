"""An engine with workers that Ray starts, in a process of its own: writes what happened as JSON.

python ray_script.py SCENARIO FILE
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvasir import LLM, SamplingParams
from kvasir.config.options import ConfigError
from kvasir.executor.multiprocess import MultiprocessExecutor
from kvasir.process.failures import FailureError
from runtime.executor.processes import is_alive, seconds_until_gone

PROMPTS = [f"Kvasir {number} is" for number in range(9)]
SAMPLED: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 12},
    {"temperature": 2.0, "seed": 3, "n": 2, "max_tokens": 9},
]
MAX_SECONDS = 20.0


def make(**options: Any) -> LLM:
    defaults: dict[str, Any] = {
        "dtype": "float32",
        "max_num_seqs": 4,
        "max_model_len": 256,
        "num_gpu_blocks_override": 60,
    }
    return LLM("demo://", **defaults | options)


def tokens(llm: LLM, prompts: Sequence[str], fields: dict[str, Any]) -> list[list[list[int]]]:
    outputs = llm.generate(prompts, SamplingParams(**fields))
    return [[list(choice.token_ids) for choice in output.outputs] for output in outputs]


def workers_of(llm: LLM) -> MultiprocessExecutor:
    executor = llm._engine._executor
    assert isinstance(executor, MultiprocessExecutor)
    return executor


def with_ray(workers: int = 2, **options: Any) -> LLM:
    return make(tensor_parallel_size=workers, threads=workers, distributed_executor_backend="ray", **options)


def answers() -> dict[str, Any]:
    before = signal.getsignal(signal.SIGTERM)
    with with_ray() as llm:
        found = {"tokens": [tokens(llm, PROMPTS, fields) for fields in SAMPLED]}
        pids = workers_of(llm).pids
        where = workers_of(llm).where()
    seconds_until_gone(pids, MAX_SECONDS)
    with with_ray() as llm:  # the CPUs are free again
        again = tokens(llm, PROMPTS, SAMPLED[0])
    return found | {
        "again": again,
        "workers": len(set(pids)),
        "where": where,
        "same handler": signal.getsignal(signal.SIGTERM) is before,
    }


def kill() -> dict[str, Any]:
    """One worker is killed while the engine is idle."""
    with with_ray() as llm:
        llm.generate(PROMPTS[0])
        pids = workers_of(llm).pids
        began = time.monotonic()
        os.kill(pids[1], signal.SIGKILL)
        seconds_until_gone(pids, MAX_SECONDS)
        seconds = time.monotonic() - began
        try:
            llm.generate(PROMPTS[0])
        except FailureError as error:
            return {"error": str(error), "seconds": seconds}
    return {}


def frozen() -> dict[str, Any]:
    with with_ray(worker_timeout="2s") as llm:
        llm.generate(PROMPTS[0])
        pids = workers_of(llm).pids
        os.kill(pids[1], signal.SIGSTOP)
        try:
            llm.generate(PROMPTS[0])
        except FailureError as error:
            seconds_until_gone(pids, MAX_SECONDS)
            return {"error": str(error)}
    return {}


def refused() -> dict[str, Any]:
    """Too few CPUs, and too little memory in a worker."""
    from kvasir.executor.ray_workers import cluster  # needs Ray

    found = {}
    cluster.PLACE_SECONDS = 2.0
    memory: dict[str, Any] = {"kv_cache_memory_bytes": "1000", "num_gpu_blocks_override": None}
    for name, workers, options in (("cpus", 4, {}), ("memory", 2, memory)):
        try:
            with_ray(workers, **options)
        except (FailureError, ConfigError) as error:
            found[name] = str(error)
    return found


def watched() -> dict[str, Any]:
    """Ray's memory monitor ends the workers."""
    try:
        with with_ray() as llm:
            for _ in range(1000):
                llm.generate(PROMPTS)
    except FailureError as error:
        return {"error": str(error), "reason": str(error.failure.reason)}
    return {}


def die() -> dict[str, Any]:
    """The engine is killed: its workers must end by themselves."""
    llm = with_ray()
    pids = workers_of(llm).pids
    assert all(map(is_alive, pids))
    Path(sys.argv[2]).write_text(json.dumps({"pids": pids}))
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


if __name__ == "__main__":
    result = globals()[sys.argv[1]]()
    Path(sys.argv[2]).write_text(json.dumps(result))
