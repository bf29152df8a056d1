"""The workload of nano-vllm's bench.py: 256 requests with prompts and outputs of 100 to 1,024 tokens, at once."""

import random
import statistics
import time

from bench.gpu.engines import random_engine
from bench.gpu.shapes import MODELS, tiny
from bench.gpu.worker import Context

from kvasir.request.params import SamplingParams

REQUESTS = 256
SHORTEST, LONGEST = 100, 1024
# Prompts have token ids up to this.
TOKENS = 10_000
TEMPERATURE = 0.6
# Blocks for 112 KiB per token: no request is preempted.
_CACHE_BYTES = 36 * 2**30


def requests(count: int, longest: int, tokens: int) -> list[tuple[list[int], int]]:
    """Return prompts and output lengths, drawn in the order in which nano-vllm draws them."""
    rng = random.Random(0)
    shortest = min(SHORTEST, longest)
    prompts = [[rng.randint(0, tokens) for _ in range(rng.randint(shortest, longest))] for _ in range(count)]
    return [(prompt, rng.randint(shortest, longest)) for prompt in prompts]


def run(context: Context, argument: str) -> None:
    shape = tiny(MODELS[argument]) if context.tiny else MODELS[argument]
    asked = requests(3, 6, 100) if context.tiny else requests(REQUESTS, LONGEST, TOKENS)
    cache_bytes, context_length = (2**24, 256) if context.tiny else (_CACHE_BYTES, 4096)
    with random_engine(shape, context.device, cache_bytes, context_length) as engine:
        engine.add("warm", [2] * 8, SamplingParams(max_tokens=4, seed=0, temperature=TEMPERATURE))
        engine.finish()
        engine.tokens.clear()
        began = time.perf_counter()
        for index, (prompt, output) in enumerate(asked):
            params = SamplingParams(max_tokens=output, seed=index, temperature=TEMPERATURE, ignore_eos=True)
            engine.add(str(index), prompt, params)
        added = time.perf_counter() - began
        steps = engine.finish()
        seconds = time.perf_counter() - began
        preemptions = engine.core.stats().preemptions
    output = sum(len(tokens) for tokens in engine.tokens.values())
    expected = sum(output for _, output in asked)
    figures = {
        "requests": len(asked),
        "prompt_tokens": sum(len(prompt) for prompt, _ in asked),
        "output_tokens": output,
        "expected_output_tokens": expected,
        "seconds": seconds,
        "adding_seconds": added,
        "output_tokens_per_second": output / seconds,
        "steps": len(steps),
        "median_step_ms": statistics.median(step.whole for step in steps) * 1e3,
        "median_submit_ms": statistics.median(step.submitting for step in steps) * 1e3,
        "median_wait_ms": statistics.median(step.waiting for step in steps) * 1e3,
        "preemptions": preemptions,
    }
    context.record("workload", figures)
    context.line(
        f"workload: {output} of {expected} output tokens in {seconds:.2f} s = {output / seconds:.0f} tok/s, "
        f"{len(steps)} steps, median {figures['median_step_ms']:.2f} ms ({figures['median_submit_ms']:.2f} "
        f"submitting, {figures['median_wait_ms']:.2f} waiting), {preemptions} preemptions"
    )
    if output != expected:
        raise RuntimeError(f"{output} tokens came, and the requests ask for {expected}")
