"""torch's FlexAttention over contiguous K and V, compiled for the shapes of attention.py."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from bench.gpu.timings.attention import DECODES, HEADS, PREFILLS, TINY_HEADS, inputs_of
from bench.gpu.timings.baselines import measured
from bench.gpu.worker import Context
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


@torch.inference_mode()
def run(context: Context, argument: str) -> None:
    heads = TINY_HEADS if context.tiny else HEADS
    for batch, length in ((1, 128),) if context.tiny else PREFILLS:
        q, k, v = inputs_of(context.device, heads, batch, length, length, 0)
        mask = create_block_mask(_causal, None, None, length, length, device=context.device)
        attend = functools.partial(_compiled(context), q, k, v, block_mask=mask, enable_gqa=True)
        flops = 4 * batch * heads.heads * heads.head_dim * length * (length + 1) // 2
        _report(context, f"prefill {batch} x {length}", measured([attend], on_gpu=context.on_gpu), flops, "FLOP/s")
    for batch, length in ((2, 128),) if context.tiny else DECODES[:4]:
        q, k, v = inputs_of(context.device, heads, batch, 1, length, 0)
        attend = functools.partial(_compiled(context), q, k, v, enable_gqa=True)
        num_bytes = batch * length * heads.kv_bytes(q.dtype)
        _report(context, f"decode {batch} x {length}", measured([attend], on_gpu=context.on_gpu), num_bytes, "B/s")


def _compiled(context: Context) -> Callable[..., Any]:
    if not context.on_gpu:
        return flex_attention
    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
    return compiled


def _causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def _report(context: Context, title: str, seconds: float | str, amount: int, unit: str) -> None:
    context.record(title, seconds)
    if isinstance(seconds, str):
        context.line(f"flex: {title}: {seconds}")
    else:
        context.line(f"flex: {title}: {seconds * 1e6:.0f} us, {amount / seconds / 1e12:.2f} T{unit}")
