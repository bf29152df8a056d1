"""Gated experts. Ranks hold a part of every expert, or whole experts (expert parallelism)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from kvasir.kernels.triton.device_support import DTYPES, can_compile, log_unproven
from kvasir.kernels.triton.experts.expert_tiling import ACTIVATIONS as KERNEL_ACTIVATIONS
from kvasir.kernels.triton.experts.expert_tiling import CLAMPED, MAX_EXPERTS, ExpertShape, Gate
from kvasir.layers.activation import ACTIVATIONS, Activation, ClampedSwiGLU, gated
from kvasir.layers.layout import WHOLE, Split
from kvasir.layers.linear import StackedLinear, grouped_product
from kvasir.layers.linear_shape import Stack
from kvasir.layers.parameter import Placement

if TYPE_CHECKING:
    from kvasir.kernels.triton.experts.expert_kernels import ExpertKernels

# Tests set "cpu" for Triton's interpreter.
_KERNEL_DEVICE: Final = "cuda"


@dataclass(frozen=True)
class ExpertForm:
    """The parameters of experts, and how a checkpoint's tensor of all experts stores them (StackedLoader)."""

    bias: bool = False
    transposed: bool = False
    alternating: bool = False


_PLAIN: Final = ExpertForm()


class Experts(nn.Module):
    """down(activation(gate(x)) * up(x)) of each expert."""

    def __init__(
        self,
        size: int,
        inner: int,
        activation: Activation,
        count: int,
        placement: Placement,
        form: ExpertForm = _PLAIN,
    ) -> None:
        super().__init__()
        group = placement.parallel.tensor
        rank, ranks = (0, 1) if placement.parallel.expert_parallel else (group.rank, group.size)
        self.own = placement.parallel.own_experts(count)
        stack = Stack(count, self.own, form.alternating)
        self.gate_up_proj = StackedLinear(
            size,
            {"gate_proj": inner, "up_proj": inner},
            stack=stack,
            split=Split(0, rank, ranks),
            placement=placement.at("gate_up_proj"),
            bias=form.bias,
            transposed=form.transposed,
        )
        self.down_proj = StackedLinear(
            inner,
            {WHOLE: size},
            stack=stack,
            split=Split(1, rank, ranks),
            placement=placement.at("down_proj"),
            bias=form.bias,
            transposed=form.transposed,
        )
        self._activation = activation
        self._device = placement.device
        self._all = len(self.own) == count
        plain = self._plain_weights() is not None
        self._grouped = plain and placement.device.type != "cpu" and placement.dtype == torch.bfloat16
        self._kernels = self._choose_kernels(count, placement) if plain else None

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        # x [T, size], chosen [T, top_k] → [T, top_k, size]; zeros for experts of other ranks
        weights = self._plain_weights()
        if self._kernels is not None and weights is not None:
            return self._kernels(x, chosen, *weights, self._biases())
        top_k = chosen.shape[1]
        local = chosen.flatten()  # [T * top_k]
        if not self._all:
            local = local - self.own.start
            local = torch.where((local >= 0) & (local < len(self.own)), local, len(self.own))  # others come last
        sorted_experts, places = local.sort(stable=True)
        if self._grouped and weights is not None:
            parts = self.in_groups(x, sorted_experts, places, top_k, *weights)
        else:
            parts = self.one_by_one(x, sorted_experts, places, top_k)
        return parts.view(-1, top_k, x.shape[1])

    @property
    def waits_for_device(self) -> bool:
        """Return whether the host reads the choice of experts, which no CUDA graph can."""
        return self._device.type != "cpu" and self._kernels is None and not self._grouped

    def weighted_sum(self, parts: Tensor, weights: Tensor) -> Tensor:
        # [T, top_k, size], [T, top_k] → [T, size] float32
        if self._kernels is not None:
            return self._kernels.weighted_sum(parts, weights)
        scaled = parts * weights[:, :, None]
        return scaled.sum(dim=1)

    def one_by_one(self, x: Tensor, sorted_experts: Tensor, places: Tensor, top_k: int) -> Tensor:
        # The host waits for the device.
        sizes = sorted_experts.bincount(minlength=len(self.own) + 1).tolist()
        new = torch.empty if self._all else torch.zeros
        parts = new(places.shape[0], x.shape[1], dtype=x.dtype, device=x.device)
        for expert, tokens in enumerate(places.split(sizes)[: len(self.own)]):
            if len(tokens):
                inner = gated(self.gate_up_proj.one(expert, x[tokens // top_k]), self._activation)
                parts[tokens] = self.down_proj.one(expert, inner)
        return parts

    def in_groups(
        self, x: Tensor, sorted_experts: Tensor, places: Tensor, top_k: int, gate_up: Tensor, down: Tensor
    ) -> Tensor:
        # The host does not wait for the device.
        experts = torch.arange(len(self.own), device=x.device)
        ends = torch.searchsorted(sorted_experts, experts, right=True, out_int32=True)
        gate_up_bias, down_bias = self._biases()
        last = len(self.own) - 1
        products = grouped_product(gate_up, x[places // top_k], ends)
        if gate_up_bias is not None:
            products += gate_up_bias[sorted_experts.clamp(max=last)]
        products = grouped_product(down, gated(products, self._activation), ends)
        if down_bias is not None:
            products += down_bias[sorted_experts.clamp(max=last)]
        if not self._all:
            products = products.masked_fill((sorted_experts == len(self.own))[:, None], 0)
        return torch.empty_like(products).index_copy_(0, places, products)

    def _biases(self) -> tuple[Tensor | None, Tensor | None]:
        return self.gate_up_proj.added_bias(), self.down_proj.added_bias()

    def _plain_weights(self) -> tuple[Tensor, Tensor] | None:
        gate_up, down = self.gate_up_proj.plain_weight(), self.down_proj.plain_weight()
        return None if gate_up is None or down is None else (gate_up, down)

    def _choose_kernels(self, count: int, placement: Placement) -> "ExpertKernels | None":
        device, held = placement.device, len(self.own)
        gate = _kernel_gate(self._activation)
        if device.type != _KERNEL_DEVICE or placement.dtype not in DTYPES or gate is None or held > MAX_EXPERTS:
            return None
        if not can_compile(device):
            return None
        from kvasir.kernels.triton.experts.expert_kernels import ExpertKernels  # imports triton

        log_unproven(device)
        _, size, inner = self.down_proj.weight.shape
        return ExpertKernels(ExpertShape(held, size, inner), self.own, count, gate, device)


def _kernel_gate(activation: Activation) -> Gate | None:
    if isinstance(activation, ClampedSwiGLU):
        return Gate(CLAMPED, activation.alpha, activation.limit)
    names = [name for name in KERNEL_ACTIVATIONS if ACTIVATIONS[name] is activation]
    return Gate(names[0]) if names else None
