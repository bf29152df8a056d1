"""Attention over caches of bfloat16 and of fp8, for the heads of Llama-3.1-8B, and over fp8 with other tiles."""

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from bench.gpu.checks.fp8 import SCALES
from bench.gpu.checks.interpreted import kernels_of
from bench.gpu.checks.paged_step import PagedStep, heads_of
from bench.gpu.timing import Call, graph_seconds
from bench.gpu.worker import Context

from kvasir.kernels.triton.device_support import FP8
from kvasir.kernels.triton.tiling import AttentionTile
from kvasir.layers.attention import KVScales, ScoreRule
from kvasir.layers.attention_backends.triton_planner import TritonPlan


@dataclass(frozen=True)
class Timed:
    title: str
    requests: Sequence[tuple[int, int]]
    # Keys, warps and stages to try.
    tiles: Sequence[tuple[int, int, int]]


TINY = (Timed("decode 2 x 40", [(39, 1)] * 2, [(32, 1, 2)]),)
STEPS = (
    Timed("decode 256 x 1024", [(1023, 1)] * 256, list(itertools.product((32, 64, 128), (1, 2, 4), (2, 3)))),
    Timed("decode 32 x 4096", [(4095, 1)] * 32, ()),
    Timed("decode 1 x 32768", [(32767, 1)], list(itertools.product((64, 128), (4, 8), (2, 3, 4)))),
    Timed("prefill 8 x 1024", [(0, 1024)] * 8, list(itertools.product((32, 64, 128), (4, 8), (2, 3)))),
)
_PRINTED = 6


@torch.inference_mode()
def run(context: Context, argument: str) -> None:
    with kernels_of(context.device):
        for timed in TINY if context.tiny else STEPS:
            _times(context, timed)


def _times(context: Context, timed: Timed) -> None:
    tokens = sum(computed + new for computed, new in timed.requests)
    for kv_dtype in (torch.bfloat16, FP8):
        steps = [_filled(context, timed.requests, kv_dtype) for _ in range(2)]
        seconds = graph_seconds([_call(step) for step in steps], on_gpu=context.on_gpu, least=8)
        rate = tokens * steps[0].heads.kv_bytes(kv_dtype) / seconds
        context.record(f"{timed.title} {kv_dtype}", {"seconds": seconds, "bytes_per_second": rate})
        context.line(f"fp8: {timed.title} {kv_dtype}: {seconds * 1e6:.0f} us, {rate / 1e9:.0f} GB/s of K and V")
    found: list[tuple[float, tuple[int, int, int]]] = []
    for numbers in timed.tiles:
        try:
            calls = [_call(step, numbers) for step in steps]
            found.append((graph_seconds(calls, on_gpu=context.on_gpu, least=8), numbers))
        except Exception as error:  # too much shared memory
            context.line(f"fp8:   {timed.title} {numbers}: {type(error).__name__}")
    for seconds, numbers in sorted(found)[:_PRINTED]:
        context.record(f"{timed.title}, keys, warps, stages {numbers}", seconds)
        context.line(f"fp8:   {timed.title} keys, warps, stages {numbers}: {seconds * 1e6:.0f} us")


def _call(step: PagedStep, numbers: tuple[int, int, int] | None = None) -> Call:
    # `numbers`: of another tile.
    plan, heads = step.plan, step.heads
    assert isinstance(plan, TritonPlan)
    if numbers is not None:
        plan = dataclasses.replace(plan, tile=AttentionTile(plan.tile.rows, *numbers))
    q = torch.randn(len(step.positions), heads.query_size, device=step.device).to(torch.bfloat16)
    return lambda: plan.attend(q, step.cache, ScoreRule(heads.head_dim**-0.5))


def _filled(context: Context, requests: Sequence[tuple[int, int]], kv_dtype: torch.dtype) -> PagedStep:
    # The whole cache holds random numbers.
    heads = heads_of("4x2x16" if context.tiny else "32x8x128")
    step = PagedStep(heads, requests, torch.bfloat16, context.device, kv_dtype=kv_dtype, scales=KVScales(*SCALES))
    blocks = step.cache.blocks
    numbers = torch.randn(blocks.shape[1:], device=context.device).to(kv_dtype)
    blocks.view(torch.uint8)[:] = numbers.view(torch.uint8)
    return step
