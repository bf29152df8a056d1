"""Bandwidth of the operations between the matrix products of a layer, for the shapes of Llama-3.1-8B."""

from collections.abc import Callable, Sequence

import torch
from bench.gpu.checks.comparison import numbers
from bench.gpu.checks.interpreted import kernels_of
from bench.gpu.checks.paged_step import PagedStep
from bench.gpu.shapes import LLAMA_8B, ModelShape, tiny
from bench.gpu.timing import Call, graph_seconds, sets_for
from bench.gpu.timings.breakdown import kernel_seconds
from bench.gpu.worker import Context

from kvasir.kernels.fused_operations import Activation
from kvasir.kernels.triton.fused_kernels import TritonOperations
from kvasir.layers.attention import HeadShape, ScoreRule

TOKENS = (1, 32, 256, 8192)
DTYPE = torch.bfloat16
_BYTES = 2


@torch.inference_mode()
def run(context: Context, argument: str) -> None:
    shape = tiny(LLAMA_8B) if context.tiny else LLAMA_8B
    kinds = {"add and rms_norm": _norm, "rms_norm": _plain_norm, "gated_activation": _gate}
    for tokens in (1, 8) if context.tiny else TOKENS:
        for name, kind in kinds.items():
            calls, num_bytes = kind(context.device, shape, tokens)
            seconds = graph_seconds(calls, on_gpu=context.on_gpu)
            _report(context, name, tokens, num_bytes, seconds)
        with kernels_of(context.device):
            _rotate_and_write(context, shape, tokens)


def _operations(device: str) -> TritonOperations:
    return TritonOperations(torch.device(device), DTYPE)


def _norm(device: str, shape: ModelShape, tokens: int) -> tuple[Sequence[Call], int]:
    # Reads x and the part to add, writes the sum and its norm.
    operations, size = _operations(device), shape.hidden
    num_bytes = 4 * tokens * size * _BYTES
    weight = numbers(size, dtype=DTYPE, device=device, seed=0)

    def call(seed: int) -> Call:
        x, added = (numbers(tokens, size, dtype=DTYPE, device=device, seed=seed + part) for part in range(2))
        return lambda: operations.add_rms_norm_(x, added, weight, 1e-5, 0.0)

    return _calls(call, num_bytes), num_bytes


def _plain_norm(device: str, shape: ModelShape, tokens: int) -> tuple[Sequence[Call], int]:
    operations, size = _operations(device), shape.hidden
    num_bytes = 2 * tokens * size * _BYTES
    weight = numbers(size, dtype=DTYPE, device=device, seed=0)

    def call(seed: int) -> Call:
        x = numbers(tokens, size, dtype=DTYPE, device=device, seed=seed)
        return lambda: operations.rms_norm(x, weight, 1e-5, 0.0)

    return _calls(call, num_bytes), num_bytes


def _gate(device: str, shape: ModelShape, tokens: int) -> tuple[Sequence[Call], int]:
    operations, size = _operations(device), shape.inner
    num_bytes = 3 * tokens * size * _BYTES

    def call(seed: int) -> Call:
        x = numbers(tokens, 2 * size, dtype=DTYPE, device=device, seed=seed)
        return lambda: operations.gate(x, Activation.SILU)

    return _calls(call, num_bytes), num_bytes


def _calls(call: Callable[[int], Call], num_bytes: int) -> list[Call]:
    return [call(seed) for seed in range(sets_for(num_bytes))]


def _rotate_and_write(context: Context, shape: ModelShape, tokens: int) -> None:
    # One token of each request, or one prompt. A profile measures the kernel, which runs with others.
    heads = HeadShape(shape.heads, shape.kv_heads, shape.head_dim)
    requests = [(0, tokens)] if tokens > 1000 else [(15, 1)] * tokens
    step = PagedStep(heads, requests, DTYPE, context.device)
    step.fill()
    rotation = step.rotation(shape.head_dim)
    width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    num_bytes = 2 * tokens * (width + shape.head_dim) * _BYTES

    def call() -> None:
        step.plan.write_and_attend(step.qkv, step.cache, ScoreRule(0.1), rotation)

    times = kernel_seconds(call, on_gpu=context.on_gpu)
    if (seconds := times.get("rotate_and_write")) is not None:
        _report(context, "rotate_and_write", tokens, num_bytes, seconds)
    elif context.on_gpu:
        context.line(f"operations: no kernel rotate_and_write among {sorted(times)}")


def _report(context: Context, name: str, tokens: int, num_bytes: int, seconds: float) -> None:
    rate = num_bytes / seconds
    share = context.share(rate, "copy_bytes_per_second")
    context.record(
        f"{name}, {tokens} tokens", {"seconds": seconds, "bytes_per_second": rate, "share_of_copy": share}
    )
    shown = "" if share is None else f", {share:.0%} of a copy"
    context.line(
        f"operations: {name:<18}{tokens:>5} tokens {seconds * 1e6:>8.1f} us {rate / 1e9:>6.0f} GB/s{shown}"
    )
