"""Attention over the paged cache, for the heads of Llama-3.1-8B: decodes by bandwidth, prefills by FLOP/s."""

from collections.abc import Sequence

import torch
from bench.gpu.checks.comparison import numbers
from bench.gpu.checks.interpreted import kernels_of
from bench.gpu.checks.paged_step import PagedStep
from bench.gpu.timing import Call, graph_seconds, sets_for
from bench.gpu.timings.baselines import Inputs, sdpa_seconds
from bench.gpu.worker import Context

from kvasir.layers.attention import HeadShape, ScoreRule

HEADS = HeadShape(32, 8, 128)
TINY_HEADS = HeadShape(4, 2, 16)
DTYPE = torch.bfloat16
# Requests and their contexts, the new token included.
DECODES = ((1, 32768), (1, 4096), (32, 4096), (256, 1024), (256, 512))
_MAX_SETS = 16
# Prompts and their lengths.
PREFILLS = ((1, 8192), (8, 1024))


@torch.inference_mode()
def run(context: Context, argument: str) -> None:
    heads = TINY_HEADS if context.tiny else HEADS
    with kernels_of(context.device):
        for batch, length in ((2, 40),) if context.tiny else DECODES:
            _decode(context, heads, batch, length)
        for batch, length in ((2, 20),) if context.tiny else PREFILLS:
            _prefill(context, heads, batch, length)


def _decode(context: Context, heads: HeadShape, batch: int, length: int) -> None:
    num_bytes = batch * length * heads.kv_bytes(DTYPE)
    sets = 1 if context.tiny else min(_MAX_SETS, max(2, sets_for(num_bytes)))
    steps = [_step(context, heads, [(length - 1, 1)] * batch) for _ in range(sets)]
    seconds = graph_seconds([_call(step, heads) for step in steps], on_gpu=context.on_gpu)
    del steps
    title = f"decode {batch} x {length}"
    rate = num_bytes / seconds
    share = context.share(rate, "read_bytes_per_second")
    context.record(title, {"seconds": seconds, "bytes_per_second": rate, "share_of_read": share})
    shown = "" if share is None else f", {share:.0%} of reads"
    context.line(f"attention: {title}: {seconds * 1e6:.0f} us, {rate / 1e9:.0f} GB/s{shown}")
    inputs = [inputs_of(context.device, heads, batch, 1, length, seed) for seed in range(sets)]
    for name, other in sdpa_seconds(inputs, causal=False, on_gpu=context.on_gpu).items():
        context.record(f"{title}, torch {name}", other)
        text = other if isinstance(other, str) else f"{other * 1e6:.0f} us, {num_bytes / other / 1e9:.0f} GB/s"
        context.line(f"attention:   torch {name}: {text}")


def _prefill(context: Context, heads: HeadShape, batch: int, length: int) -> None:
    flops = 4 * batch * heads.heads * heads.head_dim * length * (length + 1) // 2
    step = _step(context, heads, [(0, length)] * batch)
    seconds = graph_seconds([_call(step, heads)], on_gpu=context.on_gpu, least=4)
    title = f"prefill {batch} x {length}"
    share = context.share(flops / seconds, "matmul_flops")
    context.record(title, {"seconds": seconds, "flops": flops / seconds, "share_of_matmul": share})
    shown = "" if share is None else f", {share:.0%} of a matrix product"
    context.line(f"attention: {title}: {seconds * 1e3:.2f} ms, {flops / seconds / 1e12:.0f} TFLOP/s{shown}")
    inputs = [inputs_of(context.device, heads, batch, length, length, 0)]
    for name, other in sdpa_seconds(inputs, causal=True, on_gpu=context.on_gpu).items():
        context.record(f"{title}, torch {name}", other)
        text = other if isinstance(other, str) else f"{other * 1e3:.2f} ms, {flops / other / 1e12:.0f} TFLOP/s"
        context.line(f"attention:   torch {name}: {text}")


def _step(context: Context, heads: HeadShape, requests: Sequence[tuple[int, int]]) -> PagedStep:
    # A step whose whole cache holds random numbers.
    step = PagedStep(heads, requests, DTYPE, context.device)
    step.cache.blocks.normal_()
    return step


def _call(step: PagedStep, heads: HeadShape) -> Call:
    q = numbers(len(step.positions), heads.query_size, dtype=DTYPE, device=step.device, seed=0)
    return lambda: step.plan.attend(q, step.cache, ScoreRule(heads.head_dim**-0.5))


def inputs_of(device: str, heads: HeadShape, batch: int, queries: int, length: int, seed: int) -> Inputs:
    # Contiguous Q, K and V.
    q = (batch, heads.heads, queries, heads.head_dim)
    kv = (batch, heads.kv_heads, length, heads.head_dim)
    drawn = [
        numbers(*shape, dtype=DTYPE, device=device, seed=3 * seed + place)
        for place, shape in enumerate((q, kv, kv))
    ]
    return drawn[0], drawn[1], drawn[2]
