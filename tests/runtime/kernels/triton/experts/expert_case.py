"""A layer's experts and a step's tokens: by the kernels, and one by one in plain torch, also in float64."""

from typing import Final

import torch
from torch import Tensor

from kvasir.kernels.triton.experts.expert_kernels import NO_BIASES, ExpertKernels
from kvasir.kernels.triton.experts.expert_tiling import CLAMPED, ExpertShape, Gate
from kvasir.layers.activation import ACTIVATIONS, ClampedSwiGLU, gated_reference

CPU: Final = torch.device("cpu")
TOLERANCES: Final = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""Absolute and relative."""


class ExpertCase:
    """`own`: the experts of this rank."""

    def __init__(
        self,
        chosen: Tensor,
        experts: int,
        dtype: torch.dtype,
        *,
        size: int = 80,
        inner: int = 48,
        activation: str = "silu",
        own: range | None = None,
        biased: bool = False,
    ) -> None:
        self.chosen, self.experts, self.activation = chosen, experts, activation
        self.own = range(experts) if own is None else own
        generator = torch.Generator().manual_seed(len(chosen))

        def numbers(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(dtype)

        self.x = numbers(len(chosen), size)
        self.gate_up = numbers(experts, 2 * inner, size) / size**0.5
        self.down = numbers(experts, size, inner) / inner**0.5
        self.biases = (numbers(experts, 2 * inner), numbers(experts, size)) if biased else None

    def by_kernels(self) -> Tensor:
        """[T, top_k, size]"""
        _, size, inner = self.down.shape
        shape = ExpertShape(len(self.own), size, inner)
        gate = Gate(CLAMPED, 1.7, 0.9) if self.activation == CLAMPED else Gate(self.activation)
        kernels = ExpertKernels(shape, self.own, self.experts, gate, CPU)
        held = slice(self.own.start, self.own.stop)
        biases = NO_BIASES if self.biases is None else (self.biases[0][held], self.biases[1][held])
        return kernels(self.x, self.chosen, self.gate_up[held], self.down[held], biases)

    def by_torch(self, dtype: torch.dtype) -> Tensor:
        """Compute the layer with numbers of this type, an expert at a time."""
        result = torch.zeros(*self.chosen.shape, self.x.shape[1], dtype=dtype)
        for expert in self.own:
            token, number = (self.chosen == expert).nonzero(as_tuple=True)
            gate_up = self.x[token].to(dtype) @ self.gate_up[expert].to(dtype).T
            if self.biases is not None:
                gate_up += self.biases[0][expert]
            if self.activation == CLAMPED:
                inner = ClampedSwiGLU(1.7, 0.9)(gate_up)
            else:
                inner = gated_reference(gate_up, ACTIVATIONS[self.activation])
            result[token, number] = inner @ self.down[expert].to(dtype).T
            if self.biases is not None:
                result[token, number] += self.biases[1][expert]
        return result

    def check(self) -> None:
        tolerance = TOLERANCES[self.x.dtype]
        exact = self.by_torch(torch.float64)
        torch.testing.assert_close(self.by_kernels().double(), exact, rtol=tolerance, atol=tolerance)


def choices(tokens: int, top_k: int, experts: int, seed: int = 0) -> Tensor:
    """[T, top_k] different experts of each token"""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(tokens, experts, generator=generator).topk(top_k).indices
