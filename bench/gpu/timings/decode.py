"""Decode steps of a whole model: time, bytes that a step must read, time of the host, and time by kernel."""

import random
import statistics
import time

from bench.gpu.engines import Engine, StepTimes, greedy, random_engine
from bench.gpu.shapes import MODELS, ModelShape, tiny
from bench.gpu.timings.breakdown import Breakdown, profiled
from bench.gpu.worker import Context, Figures

BATCHES = (1, 32, 256)
EAGER_BATCHES = (1, 256)
PROFILED = {"llama-3.1-8b": (1, 256), "qwen3-0.6b": (1, 256)}
PROMPT = 480
WARM, STEPS, PROFILED_STEPS = 8, 48, 6
# Kernels that are printed.
TOP = 12
_CACHE_BYTES = {"llama-3.1-8b": 21 * 2**30, "qwen3-0.6b": 18 * 2**30}
_DTYPE_BYTES = 2


def run(context: Context, argument: str) -> None:
    name, _, mode = argument.partition(" ")
    shape = tiny(MODELS[name]) if context.tiny else MODELS[name]
    cache_bytes, context_length = (2**24, 256) if context.tiny else (_CACHE_BYTES[name], 1024)
    began = time.perf_counter()
    with random_engine(shape, context.device, cache_bytes, context_length, is_eager=mode == "eager") as engine:
        context.record("start_seconds", time.perf_counter() - began)
        for batch in (1, 3) if context.tiny else EAGER_BATCHES if mode else BATCHES:
            is_profiled = not mode and batch in (PROFILED[name] if not context.tiny else (1,))
            _measure(context, engine, argument, shape, batch, is_profiled=is_profiled)


def _measure(
    context: Context, engine: Engine, model: str, shape: ModelShape, batch: int, *, is_profiled: bool
) -> None:
    prompt, warm, steps = (20, 1, 3) if context.tiny else (PROMPT, WARM, STEPS)
    begin_decodes(engine, shape, batch, prompt)
    for _ in range(warm):
        engine.step()
    began = time.perf_counter()
    taken = [engine.step() for _ in range(steps)]
    seconds = (time.perf_counter() - began) / steps
    length = statistics.fmean(len(tokens) for tokens in engine.tokens.values()) - steps / 2 + prompt
    figures = _figures(context, shape, batch, int(length), taken, seconds)
    context.record(f"batch {batch}", figures)
    context.line(
        f"decode {model} batch {batch}: {seconds * 1e3:.2f} ms/step, median {figures['median_ms']:.2f}, "
        f"{batch / seconds:.0f} tok/s, {figures['bytes_per_second'] / 1e9:.0f} GB/s{_share(figures)}; host: "
        f"{figures['submit_ms']:.2f} ms submitting, {figures['other_ms']:.2f} ms other, "
        f"{figures['wait_ms']:.2f} ms waiting"
    )
    if is_profiled:
        _profile(context, engine, f"{model} batch {batch}")
    engine.abort()


def begin_decodes(engine: Engine, shape: ModelShape, batch: int, prompt: int) -> None:
    """Add requests of random tokens, and step until each has a token."""
    rng = random.Random(batch)
    for index in range(batch):
        engine.add(f"{batch}-{index}", rng.choices(range(2, shape.vocab), k=prompt), greedy(256))
    while not all(engine.tokens.values()):
        engine.step()


def _figures(
    context: Context, shape: ModelShape, batch: int, length: int, taken: list[StepTimes], seconds: float
) -> Figures:
    rate = shape.step_bytes(batch * length, _DTYPE_BYTES) / seconds
    submitting, waiting, whole = (
        statistics.median(getattr(step, name) for step in taken) for name in ("submitting", "waiting", "whole")
    )
    return {
        "step_ms": seconds * 1e3,
        "median_ms": whole * 1e3,
        "tokens_per_second": batch / seconds,
        "tokens": sum(step.tokens for step in taken),
        "steps": len(taken),
        "context": length,
        "bytes_per_second": rate,
        "share_of_read": context.share(rate, "read_bytes_per_second"),
        "submit_ms": submitting * 1e3,
        "wait_ms": waiting * 1e3,
        "other_ms": statistics.median(step.whole - step.submitting - step.waiting for step in taken) * 1e3,
    }


def _share(figures: Figures) -> str:
    share = figures["share_of_read"]
    return "" if share is None else f" ({share:.0%} of reads)"


def _profile(context: Context, engine: Engine, title: str) -> None:
    steps = 1 if context.tiny else PROFILED_STEPS
    times: list[float] = []

    def some() -> None:
        for _ in range(steps):
            times.append(engine.step().whole)

    found = profiled(some, on_gpu=context.on_gpu)
    context.record(f"profile, {title}", profile_figures(found, steps) | {"wall_ms": sum(times) / steps * 1e3})
    print_profile(context, title, found, steps)


def profile_figures(found: Breakdown, steps: int) -> Figures:
    kernels = {
        name: {"ms": each.seconds / steps * 1e3, "launches": each.launches / steps}
        for name, each in found.kernels.items()
    }
    return {"busy_ms": found.busy / steps * 1e3, "span_ms": found.span / steps * 1e3, "kernels": kernels}


def print_profile(context: Context, title: str, found: Breakdown, steps: int) -> None:
    launches = sum(each.launches for each in found.kernels.values())
    context.line(
        f"profile {title}, of a step: GPU busy {found.busy / steps * 1e3:.2f} of {found.span / steps * 1e3:.2f} "
        f"ms, {launches / steps:.0f} launches"
    )
    for name, each in list(found.kernels.items())[:TOP]:
        each_us = each.seconds / each.launches * 1e6
        context.line(
            f"  {each.seconds / steps * 1e3:8.3f} ms {each.launches / steps:6.1f} x {each_us:7.1f} us  {name}"
        )
