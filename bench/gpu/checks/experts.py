"""The products of a mixture of experts, and their weighted sums, next to their definition."""

import torch
from bench.gpu.checks.comparison import compare, guarded, numbers, report, same
from bench.gpu.checks.interpreted import kernels_of
from bench.gpu.worker import Context
from torch import Tensor

from kvasir.kernels.triton.experts.expert_kernels import ExpertKernels
from kvasir.kernels.triton.experts.expert_tiling import ExpertShape, Gate
from kvasir.layers.activation import ACTIVATIONS, gated_reference

# Tokens, chosen experts of each, experts, size, inner size, activation, and the experts of this rank.
Case = tuple[int, int, int, int, int, str, range | None]
CASES: tuple[Case, ...] = (
    (1, 8, 128, 2048, 768, "silu", None),
    (32, 8, 128, 2048, 768, "silu", None),
    (1500, 8, 128, 2048, 768, "silu", None),
    (300, 2, 8, 1024, 1792, "gelu_pytorch_tanh", None),
    (37, 3, 6, 80, 48, "gelu", None),
    (9, 3, 8, 140, 76, "relu", range(2, 5)),
    (700, 1, 2, 256, 64, "silu", None),
)
# For float32, whose products use no tensor cores.
SMALL: tuple[Case, ...] = (CASES[0], *CASES[3:])
TINY: tuple[Case, ...] = ((5, 2, 3, 80, 48, "silu", None), (9, 2, 4, 80, 48, "gelu", range(1, 3)))


@torch.inference_mode()
def run(context: Context, argument: str) -> None:
    dtype = getattr(torch, argument)
    cases = TINY if context.tiny else SMALL if dtype == torch.float32 else CASES
    for case in cases:
        with kernels_of(context.device), guarded(context, "experts' products", f"{dtype} {case}"):
            _check(context, case, dtype)


def _check(context: Context, case: Case, dtype: torch.dtype) -> None:
    tokens, top_k, experts, size, inner, activation, held = case
    own, device = range(experts) if held is None else held, context.device
    generator = torch.Generator(device).manual_seed(tokens)
    chosen = torch.rand(tokens, experts, generator=generator, device=device).topk(top_k).indices
    x = numbers(tokens, size, dtype=dtype, device=device, seed=1)
    gate_up = numbers(len(own), 2 * inner, size, dtype=dtype, device=device, seed=2, scale=size**-0.5)
    down = numbers(len(own), size, inner, dtype=dtype, device=device, seed=3, scale=inner**-0.5)
    shape = ExpertShape(len(own), size, inner)
    kernels = ExpertKernels(shape, own, experts, Gate(activation), torch.device(device))
    text = f"{dtype} {tokens} tokens, {top_k} of {experts} experts, [{size}, {inner}], {activation}"
    found = kernels(x, chosen, gate_up, down)
    exact = _exact(x, chosen, gate_up, down, activation, own)
    report(context, "experts' products", text, compare(found, exact, dtype))
    weights = torch.rand(tokens, top_k, generator=generator, device=device)
    total = torch.zeros(tokens, size, device=device)
    for number in range(top_k):
        total += found[:, number].float() * weights[:, number, None]
    report(context, "add_weighted", text, same(kernels.weighted_sum(found, weights), total))


def _exact(x: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor, activation: str, own: range) -> Tensor:
    # [T, top_k, size] in float64, zeros for experts of other ranks.
    result = torch.zeros(*chosen.shape, x.shape[1], dtype=torch.float64, device=x.device)
    for place, expert in enumerate(own):
        token, number = (chosen == expert).nonzero(as_tuple=True)
        if len(token):
            inner = gated_reference(x[token].double() @ gate_up[place].double().T, ACTIVATIONS[activation])
            result[token, number] = inner @ down[place].double().T
    return result
