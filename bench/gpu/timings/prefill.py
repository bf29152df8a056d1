"""Prefills of a whole model: time, and the FLOP/s of all that a prompt needs."""

import random
import statistics

from bench.gpu.engines import Engine, greedy, random_engine
from bench.gpu.shapes import MODELS, ModelShape, tiny
from bench.gpu.timings.breakdown import profiled
from bench.gpu.timings.decode import print_profile, profile_figures
from bench.gpu.worker import Context

PROMPTS = ((8192,), (1024,) * 8)
REPEATS = 3
_CACHE_BYTES = 6 * 2**30


def run(context: Context, argument: str) -> None:
    shape = tiny(MODELS[argument]) if context.tiny else MODELS[argument]
    cache_bytes, context_length = (2**24, 256) if context.tiny else (_CACHE_BYTES, 16384)
    with random_engine(shape, context.device, cache_bytes, context_length, max_num_batched_tokens=8192) as engine:
        for lengths in ((40,), (20, 20)) if context.tiny else PROMPTS:
            _measure(context, engine, shape, lengths)


def _measure(context: Context, engine: Engine, shape: ModelShape, lengths: tuple[int, ...]) -> None:
    rng = random.Random(len(lengths))

    def prefill() -> float:
        # Prompts are new, so the prefix cache has none of them.
        engine.tokens.clear()
        for index, length in enumerate(lengths):
            engine.add(str(index), rng.choices(range(2, shape.vocab), k=length), greedy(1))
        return sum(step.whole for step in engine.finish())

    prefill()
    seconds = statistics.median(prefill() for _ in range(1 if context.tiny else REPEATS))
    flops = shape.prefill_flops(lengths) / seconds
    share = context.share(flops, "matmul_flops")
    title = f"{len(lengths)} x {lengths[0]}"
    context.record(title, {"seconds": seconds, "flops": flops, "share_of_matmul": share})
    shown = "" if share is None else f" ({share:.0%} of a matrix product)"
    rate = f"{sum(lengths) / seconds:.0f} tok/s, {flops / 1e12:.0f} TFLOP/s{shown}"
    context.line(f"prefill {title}: {seconds * 1e3:.1f} ms, {rate}")
    found = profiled(prefill, on_gpu=context.on_gpu)
    context.record(f"profile, {title}", profile_figures(found, 1))
    print_profile(context, f"prefill {title}", found, 1)
