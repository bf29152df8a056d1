"""Time of prompts and decode steps on a CPU, with and without dot products of bfloat16 in attention.

    python -m bench.cpu_steps
    python -m bench.cpu_steps --prompts 2048 --rows 1,16 --rounds 9

A Llama of 126 M parameters with random weights in bfloat16, in this process and on one thread, whose CPU time other
processes change less than the clock. Two engines alternate: one has the attention of a batch-invariant
engine, in float32; the other measures and chooses at start. The figures are medians.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

import torch
import torch.nn.functional as F
from bench.gpu.engines import Engine, greedy, random_engine
from bench.gpu.shapes import ModelShape

from kvasir.config.hardware.machine import cpu_name
from kvasir.kernels.cpu import Kernels
from kvasir.layers.attention_backends import prompt_choice
from kvasir.layers.linear_method import PackedMethod
from kvasir.worker.kv_memory import cache_memory

MODEL: Final = ModelShape(
    "LlamaForCausalLM", "llama", 768, 12, 12, 12, 64, 3072, 8192, tied=False, context=8192,
    extra={"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu"},
)  # fmt: skip
CACHE_BYTES: Final = 640 * 2**20
PARTS: Final = {"attention": (Kernels, ("attend", "write_and_attend")), "products": (PackedMethod, ("apply",))}
DECODES: Final = 8  # steps that are timed together


@dataclass
class Times:
    """CPU seconds of an engine's steps and of their parts, in each round."""

    whole: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})


class Parts:
    """CPU seconds in the methods of PARTS since `begin`."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def begin(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def timed(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = time.thread_time()
            try:
                return method(*arguments)
            finally:
                self.seconds[part] += time.thread_time() - began

        return call

    @contextmanager
    def watched(self) -> Iterator[None]:
        with ExitStack() as patches:
            for part, (owner, names) in PARTS.items():
                for name in names:
                    method = self.timed(part, getattr(owner, name))
                    patches.enter_context(patch.object(owner, name, method))
            yield


def measure(times: Times, parts: Parts, run: Callable[[], object], runs: int = 1) -> None:
    parts.begin()
    clock, began = time.perf_counter(), time.thread_time()
    run()
    times.whole.append((time.thread_time() - began) / runs)
    times.clock.append((time.perf_counter() - clock) / runs)
    for part, seconds in parts.seconds.items():
        times.parts[part].append(seconds / runs)


def add(engine: Engine, tokens: int, output: int) -> None:
    prompt = [random.randrange(2, MODEL.vocab) for _ in range(tokens)]
    engine.add(f"{tokens}-{len(engine.tokens)}", prompt, greedy(output))


def prompt(engine: Engine, tokens: int, times: Times, parts: Parts) -> None:
    add(engine, tokens, 1)
    measure(times, parts, engine.finish)
    engine.abort()


def decodes(engine: Engine, rows: int, context: int, times: Times, parts: Parts) -> None:
    for _ in range(rows):
        add(engine, context, 2 * DECODES)
    while not all(engine.tokens.values()):
        engine.step()

    def steps() -> None:
        for _ in range(DECODES):
            engine.step()

    measure(times, parts, steps, DECODES)
    engine.abort()


def new_engine() -> AbstractContextManager[Engine]:
    return random_engine(MODEL, "cpu", CACHE_BYTES, MODEL.context, threads=1)


def bound() -> float:
    """Return the FLOP/s of a large product by this thread."""
    x, weight, best = torch.randn(1024, 1024).bfloat16(), torch.randn(1024, 1024).bfloat16(), float("inf")
    for _ in range(10):
        began = time.thread_time()
        F.linear(x, weight)
        best = min(best, time.thread_time() - began)
    return 2 * 1024**3 / best


def product_operations(tokens: int) -> float:
    return 2 * tokens * MODEL.layers * (4 * MODEL.hidden**2 + 3 * MODEL.hidden * MODEL.inner)


def attention_operations(tokens: int) -> float:
    return 4 * MODEL.layers * MODEL.heads * MODEL.head_dim * tokens * (tokens + 1) / 2


def report(name: str, both: dict[str, Times], tokens: int | None = None) -> None:
    ms = {way: statistics.median(times.whole) * 1e3 for way, times in both.items()}
    before, after = ms.values()
    print(f"{name}: {before:.1f} → {after:.1f} ms of CPU time, {before / after:.2f} times as fast", end="; ")
    clock = [statistics.median(times.clock) * 1e3 for times in both.values()]
    print(f"{clock[0]:.0f} → {clock[1]:.0f} ms on the clock")
    for way, times in both.items():
        for part, seconds in times.parts.items():
            least = statistics.median(seconds)
            line = f"    {way:7} {part:9} {least * 1e3:8.1f} ms, {least * 1e3 / ms[way]:4.0%} of the step"
            if tokens is not None:
                operations = attention_operations if part == "attention" else product_operations
                line += f", {operations(tokens) / least / 1e9:4.0f} GFLOP/s"
            print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", default="1024,2048,4096", help="tokens (default: %(default)s)")
    parser.add_argument("--rows", default="1,16", help="of a decode step (default: %(default)s)")
    parser.add_argument("--contexts", default="192,512", help="tokens of decodes (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    parts = Parts()
    with ExitStack() as stack:
        zeros = cache_memory._zeros  # filled, as pages are allocated on first use
        stack.enter_context(patch.object(cache_memory, "_zeros", lambda *size: zeros(*size).zero_()))
        with patch.object(prompt_choice, "choose", lambda *_: prompt_choice.PLAIN):
            engines = {"before": stack.enter_context(new_engine())}
        engines["after"] = stack.enter_context(new_engine())
        stack.enter_context(parts.watched())
        print(f"{cpu_name()}, one thread; a large product {bound() / 1e9:.0f} GFLOP/s")
        for tokens in map(int, filter(None, args.prompts.split(","))):
            both = {way: Times() for way in engines}
            for _ in range(args.rounds):
                for way, engine in engines.items():
                    prompt(engine, tokens, both[way], parts)
            report(f"prompt of {tokens:,} tokens", both, tokens)
        for rows in map(int, filter(None, args.rows.split(","))):
            for context in map(int, args.contexts.split(",")):
                both = {way: Times() for way in engines}
                for _ in range(args.rounds):
                    for way, engine in engines.items():
                        decodes(engine, rows, context, both[way], parts)
                report(f"decode of {rows} rows, {context:,} tokens of context", both)
        print(f"a large product {bound() / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    main()
