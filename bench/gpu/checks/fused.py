"""Norms, gated activations and rotations, each next to its definition in float64."""

from collections.abc import Iterator

import torch
from bench.gpu.checks.comparison import compare, guarded, numbers, report, same
from bench.gpu.checks.interpreted import kernels_of
from bench.gpu.worker import Context
from torch import Tensor

from kvasir.kernels.fused_operations import Activation
from kvasir.kernels.triton.fused_kernels import TritonOperations
from kvasir.layers.rotary import Rope, RotaryEmbedding, Rotation, rotate_reference_

EPS = 1e-5
# Tokens and size.
NORMS = ((1, 4096), (33, 4096), (5, 1024), (7, 896), (3, 2880), (2, 8192), (2, 16384), (300, 64))
# Tokens, heads and numbers of a head.
HEADS = ((11, 8, 128), (3, 32, 128), (5, 3, 64), (4, 1, 80), (3, 4, 256))
GATES = ((1, 14336), (7, 3072), (33, 1500), (300, 80))
# Tokens, heads, numbers of a head, and those that are rotated.
ROTATIONS = ((1, 32, 128, 128), (7, 5, 80, 32), (3, 19, 64, 64), (300, 8, 96, 72), (2, 3, 256, 256))


@torch.inference_mode()
def run(context: Context, argument: str) -> None:
    with kernels_of(context.device):
        _run(context, getattr(torch, argument))


def _run(context: Context, dtype: torch.dtype) -> None:
    operations = TritonOperations(torch.device(context.device), dtype)
    tiny = context.tiny
    for tokens, size in ((3, 896),) if tiny else NORMS:
        for shift in (0.0, 1.0):
            with guarded(context, "rms_norm", f"{dtype} [{tokens}, {size}]"):
                _norm(context, operations, tokens, size, shift, dtype)
        with guarded(context, "rms_norm, added", f"{dtype} [{tokens}, {size}]"):
            _added(context, operations, tokens, size, dtype)
    for tokens, heads, size in HEADS[2:3] if tiny else HEADS:
        with guarded(context, "rms_norm, in place", f"{dtype} [{tokens}, {heads}, {size}]"):
            _norm_of_heads(context, operations, tokens, heads, size, dtype)
    for tokens, size in ((3, 1500),) if tiny else GATES:
        for activation in Activation:
            with guarded(context, "gated_activation", f"{dtype} {activation.name} [{tokens}, {size}]"):
                _gate(context, operations, tokens, size, activation, dtype)
    with guarded(context, "gated_activation", f"{dtype}, far out"):
        _far_out(context, operations, dtype)
    for tokens, heads, head_dim, dim in ROTATIONS[1:2] if tiny else ROTATIONS:
        with guarded(context, "rotate", f"{dtype} [{tokens}, {heads}, {head_dim}]"):
            _rotate(context, operations, tokens, heads, head_dim, dim, dtype)


def normalised(x: Tensor, weight: Tensor, shift: float) -> Tensor:
    # [..., size] in float64
    exact = x.double()
    return exact * (exact.square().mean(-1, keepdim=True) + EPS).rsqrt() * (weight.double() + shift)


def _norm(
    context: Context, operations: TritonOperations, tokens: int, size: int, shift: float, dtype: torch.dtype
) -> None:
    x, weight = _inputs(context, dtype, (tokens, size), (size,))
    out = operations.rms_norm(x, weight, EPS, shift)
    case = f"{dtype} [{tokens}, {size}], shift {shift:g}"
    report(context, "rms_norm", case, compare(out, normalised(x, weight, shift), dtype))


def _added(context: Context, operations: TritonOperations, tokens: int, size: int, dtype: torch.dtype) -> None:
    x, wide, weight = _inputs(context, dtype, (tokens, size), (tokens, size + 16), (size,))
    added = wide[:, :size]
    total = x + added
    out = operations.add_rms_norm_(x, added, weight, EPS, 1.0)
    case = f"{dtype} [{tokens}, {size}]"
    report(context, "rms_norm, added", f"{case}, the sum", same(x, total))
    report(context, "rms_norm, added", case, compare(out, normalised(total, weight, 1.0), dtype))


def _norm_of_heads(
    context: Context, operations: TritonOperations, tokens: int, heads: int, size: int, dtype: torch.dtype
) -> None:
    qkv, weight = _inputs(context, dtype, (tokens, (heads + 2) * size), (size,))
    before = qkv.clone()
    view = qkv.unflatten(1, (-1, size))[:, 1 : 1 + heads]
    exact = normalised(before.unflatten(1, (-1, size))[:, 1 : 1 + heads], weight, 0.0)
    operations.rms_norm_(view, weight, EPS, 0.0)
    case = f"{dtype} [{tokens}, {heads}, {size}]"
    report(context, "rms_norm, in place", case, compare(view, exact, dtype))
    before.unflatten(1, (-1, size))[:, 1 : 1 + heads] = view
    report(context, "rms_norm, in place", f"{case}, other heads", same(qkv, before))


def _gate(
    context: Context,
    operations: TritonOperations,
    tokens: int,
    size: int,
    activation: Activation,
    dtype: torch.dtype,
) -> None:
    (x,) = _inputs(context, dtype, (tokens, 2 * size))
    out = operations.gate(x, activation)
    gate, up = x.double().chunk(2, dim=1)
    exact = activated(gate, activation) * up
    report(
        context,
        "gated_activation",
        f"{dtype} {activation.name} [{tokens}, {size}]",
        compare(out, exact, dtype),
    )


def activated(gate: Tensor, activation: Activation) -> Tensor:
    if activation is Activation.SILU:
        return torch.nn.functional.silu(gate)
    return torch.nn.functional.gelu(gate, approximate="tanh")


def _far_out(context: Context, operations: TritonOperations, dtype: torch.dtype) -> None:
    # Large gates neither overflow nor give NaN; NaN stays NaN.
    largest = torch.finfo(dtype).max
    gate = torch.tensor([-largest, -200.0, -89.0, 0.0, 89.0, 200.0, largest, torch.nan], dtype=dtype)
    x = torch.cat((gate, torch.ones_like(gate)))[None].to(context.device)
    for activation in Activation:
        expected = activated(gate.double(), activation).to(dtype)
        found = operations.gate(x, activation)[0].cpu()
        is_same = torch.isclose(found.double(), expected.double(), rtol=1e-5, atol=1e-30, equal_nan=True)
        problem = "" if is_same.all() else f"{found.tolist()} instead of {expected.tolist()}"
        context.check("gated_activation", f"{dtype} {activation.name}, far out", 0.0, problem)


def _rotate(
    context: Context,
    operations: TritonOperations,
    tokens: int,
    heads: int,
    head_dim: int,
    dim: int,
    dtype: torch.dtype,
) -> None:
    (qkv,) = _inputs(context, dtype, (tokens, (heads + 2) * head_dim))
    rotary = RotaryEmbedding(Rope(dim, 10000.0, None), 2**17, torch.device(context.device))
    turn = rotary.rotation(torch.arange(tokens, device=context.device) * 37, dtype)
    before = qkv.clone()
    exact = before.double()
    turned = Rotation(turn.cos.double(), turn.sin.double())
    rotate_reference_(exact.unflatten(1, (-1, head_dim))[:, :heads], turned)
    operations.rotate_(qkv[:, : heads * head_dim].unflatten(1, (heads, head_dim)), turn.cos, turn.sin)
    case = f"{dtype} [{tokens}, {heads}, {head_dim}], {dim} rotated"
    report(context, "rotate", case, compare(qkv, exact, dtype))
    others = same(qkv[:, heads * head_dim :], before[:, heads * head_dim :])
    report(context, "rotate", f"{case}, other heads", others)


def _inputs(context: Context, dtype: torch.dtype, *shapes: tuple[int, ...]) -> Iterator[Tensor]:
    for seed, shape in enumerate(shapes):
        yield numbers(*shape, dtype=dtype, device=context.device, seed=seed + shape[-1], scale=2.0)
