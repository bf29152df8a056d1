"""A user's script for several processes that each have a whole engine: writes what happened as JSON.

python launched_script.py SCENARIO FOLDER [WORKERS]
"""

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from kvasir import LLM, SamplingParams
from kvasir.client.input.prompted import Prompted
from kvasir.layers.kv import KVCacheConfig
from kvasir.process.failures import FailureError
from kvasir.request.constraint import Grammar, GrammarKind, OutputConstraint
from kvasir.worker.step import StepInput, StepOutput
from kvasir.worker.worker import Worker

PROMPTS = [f"Kvasir {number} is" for number in range(9)]
SAMPLED: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 12},
    {"temperature": 2.0, "seed": 3, "n": 2, "max_tokens": 9},
    {"temperature": 2.0, "max_tokens": 9},
]
"""The last one draws from seeds that the engine chooses."""
RANK = int(os.environ.get("RANK", "0"))


def make(workers: int, **options: Any) -> LLM:
    backend = "external_launcher" if "RANK" in os.environ else "uni"
    defaults: dict[str, Any] = {
        "dtype": "float32",
        "max_num_seqs": 4,
        "max_model_len": 256,
        "num_gpu_blocks_override": 60,
    }
    return LLM(
        "demo://",
        tensor_parallel_size=workers,
        distributed_executor_backend=backend,
        worker_timeout="30",
        **defaults | options,
    )


def tokens(llm: LLM, prompts: Sequence[str], fields: dict[str, Any]) -> list[list[list[int]]]:
    outputs = llm.generate(prompts, SamplingParams(**fields))
    return [[list(choice.token_ids) for choice in output.outputs] for output in outputs]


def error_of(act: Callable[[], object]) -> str:
    try:
        act()
    except (FailureError, RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def answers(workers: int) -> dict[str, Any]:
    """Return the tokens of two engines, one after the other."""
    found = {}
    for name, asynchronous in (("tokens", False), ("asynchronous", True)):
        with make(workers, async_scheduling=asynchronous) as llm:
            found[name] = [tokens(llm, PROMPTS, fields) for fields in SAMPLED]
            constrain(llm)
            found[f"constrained {name}"] = [tokens(llm, PROMPTS, fields) for fields in SAMPLED]
    return found


def constrain(llm: LLM) -> None:
    """Give each request of every second prompt a grammar of its own."""
    prepare, prompts = llm.llm_engine.input.prepare, itertools.count()

    def constrained(*arguments: Any, **options: Any) -> Prompted:
        number = next(prompts)
        constraint = OutputConstraint(Grammar(GrammarKind.REGEX, f"[0-9]{{{2 + number}}}")) if number % 2 else None
        return prepare(*arguments, **{**options, "constraint": constraint})

    llm.llm_engine.input.prepare = constrained  # type: ignore[method-assign]


def mistakes(workers: int) -> dict[str, Any]:
    found: dict[str, Any] = {"settings": error_of(lambda: make(workers, block_size=16 * (1 + RANK)))}
    layout = Worker.kv_layout

    def smaller(worker: Worker) -> KVCacheConfig:
        full = layout(worker)
        return KVCacheConfig(full.groups, full.num_blocks - 20 * RANK)

    Worker.kv_layout = smaller  # type: ignore[method-assign, assignment]
    with make(workers) as llm:
        found["backend"] = dist.get_backend()
        found["blocks"] = llm._engine._core.scheduler.blocks.pool.num_free
        found["prompts"] = error_of(lambda: llm.generate(["one", "of rank 0", "of rank 1"][:: 1 + RANK]))
        found["after"] = error_of(lambda: llm.generate("one"))
    return found


def interrupt(workers: int) -> dict[str, Any]:
    """Ctrl-C reaches rank 1 only, which then goes on with other prompts."""
    with make(workers) as llm:
        if RANK == 1:
            act_in_step(6, lambda: os.kill(os.getpid(), signal.SIGINT))
        try:
            llm.generate(PROMPTS)
        except KeyboardInterrupt:
            return {"first": "interrupted", "second": error_of(lambda: tokens(llm, PROMPTS, SAMPLED[0]))}
        except FailureError as error:
            return {"first": str(error), "second": error_of(lambda: tokens(llm, PROMPTS, SAMPLED[0]))}
    return {}


def kill(workers: int) -> dict[str, Any]:
    """Rank 1 dies in a step."""
    with make(workers) as llm:
        if RANK == 1:
            act_in_step(6, lambda: os.kill(os.getpid(), signal.SIGKILL))
        return {"error": error_of(lambda: llm.generate(PROMPTS))}


def fail_to_load(workers: int) -> dict[str, Any]:
    """Rank 1 fails while it loads; its program lives until the other one has ended."""
    if RANK == 1:

        def broken(worker: Worker, progress: Callable[[int, int], None]) -> None:
            raise RuntimeError("a broken file")

        Worker.load = broken  # type: ignore[method-assign, assignment]
    found = {"error": error_of(lambda: make(workers))}
    if RANK == 1:
        input()
    return found


def act_in_step(number: int, act: Callable[[], None]) -> None:
    execute = Worker.execute

    def acting(worker: Worker, step: StepInput) -> StepOutput:
        if step.number == number:
            act()
        return execute(worker, step)

    Worker.execute = acting  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    scenario, folder = globals()[sys.argv[1]], Path(sys.argv[2])
    result = scenario(int(os.environ.get("WORLD_SIZE", "1")))
    (folder / f"{RANK}.json").write_text(json.dumps(result))
