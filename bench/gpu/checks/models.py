"""Whole models with random weights in float32: greedy tokens of the GPU are those of the CPU, in any batch.

Two logits may be equal to within rounding. Then a few tokens differ without an error, so a share of them counts.
"""

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from bench.gpu.checks.interpreted import kernels_of
from bench.gpu.engines import Engine, engine_config, greedy, start
from bench.gpu.shapes import CHECKED, ModelShape, tiny
from bench.gpu.worker import Context

LENGTHS: Final = (1, 2, 15, 16, 17, 31, 40, 64, 97, 129, 200, 255, 333, 470, 600, 801)
OUTPUT: Final = 32
# On the CPU: other checks run at the same time.
THREADS: Final = 4
# Share of the tokens that must be equal.
EQUAL: Final = 0.95
LOGPROB_ERROR: Final = 5e-3

Prompts = Sequence[list[int]]


@dataclass(frozen=True)
class Answers:
    """Keyed by prompt."""

    tokens: list[list[int]]
    logprobs: list[list[float]]


def run(context: Context, argument: str) -> None:
    shape = tiny(CHECKED[argument]) if context.tiny else CHECKED[argument]
    rng = random.Random(0)
    lengths, output = ((1, 5, 18), 3) if context.tiny else (LENGTHS, OUTPUT)
    prompts = [rng.choices(range(2, shape.vocab), k=length) for length in lengths]
    others = [rng.choices(range(2, shape.vocab), k=length) for length in lengths[::2]]
    with tempfile.TemporaryDirectory() as name:
        shape.save(Path(name), torch.float32, "cpu")
        here = _start(name, "cpu", shape)
        expected = _answers(here, prompts, output, logprobs=0)
        here.close()
        with kernels_of(context.device):
            there = _start(name, context.device, shape)
            try:
                found = _answers(there, prompts, output)
                _compare(context, f"{argument}, as on the CPU", found, expected)
                again = _answers(there, [*others, *prompts[::-1]], output)
                turned = Answers(again.tokens[len(others) :][::-1], [])
                _compare(context, f"{argument}, in another batch", turned, found)
                scored = _answers(there, prompts, output, logprobs=0)
                _compare(context, f"{argument}, with log probabilities", scored, expected)
                _compare_logprobs(context, argument, scored, expected)
            finally:
                there.close()


def _start(folder: str, device: str, shape: ModelShape) -> Engine:
    config = engine_config(
        folder,
        device=device,
        cache_bytes=2**30 if shape.hidden > 64 else 2**24,
        max_model_len=min(shape.context, 1024),
        load_format="safetensors",
        threads=THREADS,
        max_num_seqs=64,
        max_num_batched_tokens=512,
    )
    return start(config)


def _answers(engine: Engine, prompts: Prompts, output: int, logprobs: int | None = None) -> Answers:
    names = [str(index) for index in range(len(prompts))]
    for name, prompt in zip(names, prompts, strict=True):
        engine.add(name, prompt, greedy(output, logprobs))
    engine.finish()
    return Answers([engine.tokens[name] for name in names], [engine.logprobs[name] for name in names])


def _compare(context: Context, case: str, found: Answers, expected: Answers) -> None:
    pairs = list(zip(found.tokens, expected.tokens, strict=True))
    total = sum(len(wanted) for _, wanted in pairs)
    equal = sum(_common(one, wanted) for one, wanted in pairs)
    whole = sum(one == wanted for one, wanted in pairs)
    context.record(case, {"tokens": total, "equal": equal, "prompts": len(pairs), "equal_prompts": whole})
    context.line(f"model {case}: {equal} of {total} tokens equal, {whole} of {len(pairs)} prompts")
    problem = "" if equal >= EQUAL * total else f"{equal} of {total} tokens are equal"
    context.check("whole model", case, 1 - equal / total, problem)


def _compare_logprobs(context: Context, case: str, found: Answers, expected: Answers) -> None:
    # Up to the first different token, which changes all after it.
    largest = 0.0
    for place, (one, wanted) in enumerate(zip(found.tokens, expected.tokens, strict=True)):
        for index in range(_common(one, wanted)):
            difference = abs(found.logprobs[place][index] - expected.logprobs[place][index])
            largest = max(largest, difference) if difference == difference else float("inf")
    context.record(f"{case}, largest difference of log probabilities", largest)
    problem = "" if largest <= LOGPROB_ERROR else f"log probabilities differ by {largest:.3g}"
    context.check("whole model", f"{case}, log probabilities", largest, problem)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of tokens before the first that differs."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))
