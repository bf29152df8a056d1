"""Attention over the paged cache, and the writes to it: decodes, prefills, chunks and split contexts."""

import torch
from bench.gpu.checks.comparison import compare, guarded, report, same
from bench.gpu.checks.interpreted import kernels_of
from bench.gpu.checks.paged_step import PagedStep, heads_of
from bench.gpu.worker import Context

from kvasir.layers.attention import ScoreRule

STEPS = {
    "decodes": [(37, 1), (90, 1), (0, 1), (255, 1)],
    "a decode": [(15, 1)],
    "64 decodes": [((37 * index) % 700 + 16, 1) for index in range(64)],
    "split decodes": [(5000, 1), (300, 1), (17, 1)],
    "a long split decode": [(20000, 1)],
    "prompts": [(0, 1), (0, 40), (0, 129), (0, 300)],
    "a long prompt": [(0, 1500)],
    "decodes, a prompt and a chunk": [(37, 1), (90, 1), (0, 40), (21, 19)],
    "chunks": [(700, 150), (16, 16), (511, 2)],
    "a chunk of a long context": [(4000, 33)],
}
SPLIT = "split"
TINY_STEPS = {
    "decodes": [(37, 1), (5, 1)],
    "a split decode": [(600, 1)],
    "decodes, a prompt and a chunk": [(37, 1), (0, 20), (21, 9)],
}
# For float32, whose kernels use no tensor cores.
SMALL_STEPS = {
    **{name: STEPS[name] for name in ("decodes", "split decodes", "prompts", "decodes, a prompt and a chunk")},
    "chunks": [(700, 150), (16, 16)],
}


@torch.inference_mode()
def run(context: Context, argument: str) -> None:
    heads, dtype = heads_of(argument.split()[0]), getattr(torch, argument.split()[1])
    if context.tiny and (argument.split()[0] not in ("8x8x64", "14x2x64") or dtype == torch.float16):
        return
    steps = TINY_STEPS if context.tiny else SMALL_STEPS if dtype == torch.float32 else STEPS
    with kernels_of(context.device):
        for number, (name, requests) in enumerate(steps.items()):
            rotated = heads.head_dim if number % 2 else heads.head_dim // 2
            with guarded(context, "attend_paged", f"{argument} {name}"):
                step = PagedStep(heads, requests, dtype, context.device, seed=number)
                _check(context, f"{argument} {name}", step, number, rotated, is_split=SPLIT in name)


def _check(context: Context, case: str, step: PagedStep, seed: int, rotated: int, is_split: bool) -> None:
    """Write and attend; then the same with a rotation of so many numbers of a head."""
    scale, heads = step.heads.head_dim**-0.5 * 2, step.heads
    kernel = "attend_paged, merged" if is_split else "attend_paged"
    step.fill(seed)
    q, kv = step.qkv[:, : heads.query_size], step.qkv[:, heads.query_size :]
    step.plan.write(kv, step.cache)
    report(context, "write_kv", case, same(step.cache.blocks, step.written(kv)))
    out = step.plan.attend(q, step.cache, ScoreRule(scale))
    report(context, kernel, case, compare(out, step.attention(step.qkv, scale), step.dtype))

    rotation = step.rotation(rotated)
    exact = step.rotated(rotation)
    step.cache.blocks.copy_(step.before)
    out = step.plan.write_and_attend(step.qkv, step.cache, ScoreRule(scale), rotation)
    found = torch.cat((step.qkv[:, : heads.query_size], step.of_step().flatten(1)), dim=1)
    report(context, "rotate_and_write", case, compare(found, exact, step.dtype))
    expected = step.written(step.of_step().flatten(1))
    report(context, "rotate_and_write", f"{case}, other places", same(step.cache.blocks, expected))
    rounded = exact.to(step.dtype)
    report(context, kernel, f"{case}, rotated", compare(out, step.attention(rounded, scale), step.dtype))
