"""Attention with a sliding window, with a soft cap, and with both; also with split contexts."""

import torch
from bench.gpu.checks.comparison import compare, guarded, report
from bench.gpu.checks.interpreted import kernels_of
from bench.gpu.checks.paged_step import PagedStep, heads_of
from bench.gpu.worker import Context

from kvasir.layers.attention import ScoreRule

KERNEL = "attend_paged, windows, caps"
# Window and soft cap.
KINDS = ((1, None), (33, 1.5), (600, None), (1024, 30.0), (None, 5.0))
STEPS = {
    "mixed": [(37, 1), (90, 1), (700, 1), (0, 200), (650, 70)],
    "split": [(3000, 1), (1700, 1)],
    "prompts": [(0, 400), (0, 900)],
}
TINY_KINDS = ((7, None), (20, 1.5))
TINY_STEPS = {"mixed": [(37, 1), (0, 12), (40, 5)]}


@torch.inference_mode()
def run(context: Context, argument: str) -> None:
    heads, dtype = heads_of(argument.split()[0]), getattr(torch, argument.split()[1])
    if context.tiny and (heads.head_dim > 64 or dtype != torch.float32):
        return
    steps, kinds = (TINY_STEPS, TINY_KINDS) if context.tiny else (STEPS, KINDS)
    with kernels_of(context.device):
        for name, requests in steps.items():
            for window, cap in kinds:
                case = f"{argument} {name}, window {window}, cap {cap}"
                with guarded(context, KERNEL, case):
                    step = PagedStep(heads, requests, dtype, context.device, window=window, block_size=32)
                    report(context, KERNEL, case, _outcome(step, cap))


def _outcome(step: PagedStep, cap: float | None) -> tuple[float, str]:
    heads, scale = step.heads, step.heads.head_dim**-0.5 * 2
    step.fill()
    q, kv = step.qkv[:, : heads.query_size], step.qkv[:, heads.query_size :]
    step.plan.write(kv, step.cache)
    out = step.plan.attend(q, step.cache, ScoreRule(scale, step.window, cap))
    return compare(out, step.attention(step.qkv, scale, cap), step.dtype)
