"""A mixture of gated experts. Ranks hold a part of every expert, or whole experts (expert parallelism)."""

from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from kvasir.kernels.triton.device_support import DTYPES, can_compile, log_unproven
from kvasir.kernels.triton.experts.expert_tiling import ACTIVATIONS as KERNEL_ACTIVATIONS
from kvasir.kernels.triton.experts.expert_tiling import MAX_EXPERTS, ExpertShape
from kvasir.layers.activation import ACTIVATIONS, Activation, gated
from kvasir.layers.layout import WHOLE, Split
from kvasir.layers.linear import Linear, StackedLinear, grouped_product
from kvasir.layers.linear_shape import Stack
from kvasir.layers.parameter import Placement
from kvasir.parallel.group import Group

if TYPE_CHECKING:
    from kvasir.kernels.triton.experts.expert_kernels import ExpertKernels

# Tests set "cpu" for Triton's interpreter.
_KERNEL_DEVICE: Final = "cuda"


class Experts(nn.Module):
    """down(activation(gate(x)) * up(x)) of each expert."""

    def __init__(self, size: int, inner: int, activation: Activation, count: int, placement: Placement) -> None:
        super().__init__()
        group = placement.parallel.tensor
        rank, ranks = (0, 1) if placement.parallel.expert_parallel else (group.rank, group.size)
        self.own = placement.parallel.own_experts(count)
        stack = Stack(count, self.own)
        self.gate_up_proj = StackedLinear(
            size,
            {"gate_proj": inner, "up_proj": inner},
            stack=stack,
            split=Split(0, rank, ranks),
            placement=placement.at("gate_up_proj"),
        )
        self.down_proj = StackedLinear(
            inner, {WHOLE: size}, stack=stack, split=Split(1, rank, ranks), placement=placement.at("down_proj")
        )
        self._activation = activation
        self._all = len(self.own) == count
        plain = self._plain_weights() is not None
        self._grouped = plain and placement.device.type != "cpu" and placement.dtype == torch.bfloat16
        self._kernels = self._choose_kernels(count, placement) if plain else None

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        # x [T, size], chosen [T, top_k] → [T, top_k, size]; zeros for experts of other ranks
        weights = self._plain_weights()
        if self._kernels is not None and weights is not None:
            return self._kernels(x, chosen, *weights)
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
        inner = gated(grouped_product(gate_up, x[places // top_k], ends), self._activation)
        products = grouped_product(down, inner, ends)
        if not self._all:
            products = products.masked_fill((sorted_experts == len(self.own))[:, None], 0)
        return torch.empty_like(products).index_copy_(0, places, products)

    def _plain_weights(self) -> tuple[Tensor, Tensor] | None:
        gate_up, down = self.gate_up_proj.plain_weight(), self.down_proj.plain_weight()
        return None if gate_up is None or down is None else (gate_up, down)

    def _choose_kernels(self, count: int, placement: Placement) -> "ExpertKernels | None":
        device, held = placement.device, len(self.own)
        names = [name for name in KERNEL_ACTIVATIONS if ACTIVATIONS[name] is self._activation]
        if device.type != _KERNEL_DEVICE or placement.dtype not in DTYPES or not names or held > MAX_EXPERTS:
            return None
        if not can_compile(device):
            return None
        from kvasir.kernels.triton.experts.expert_kernels import ExpertKernels  # imports triton

        log_unproven(device)
        _, size, inner = self.down_proj.weight.shape
        return ExpertKernels(ExpertShape(held, size, inner), self.own, count, names[0], device)


class SharedExperts:
    """Exchanges tokens between engines that each hold some of the experts.

    All engines must call the layers in the same order, also without tokens.
    """

    def __init__(self, group: Group) -> None:
        self._group = group

    def dispatch(self, x: Tensor, weights: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor, list[int]]:
        """Return the tokens of all engines, their weights and experts, and the tokens per engine."""
        # Collective operations need equal shapes on all ranks.
        counts = self._group.all_gather(torch.tensor([x.shape[0]], device=x.device), 0).tolist()
        if not (most := max(counts)):
            return x, weights, chosen, counts
        row = torch.cat([_as_bytes(part) for part in (x, weights, chosen.int())], dim=1)
        rows = row.new_zeros(most, row.shape[1])
        rows[: row.shape[0]] = row
        gathered = self._group.all_gather(rows, 0).view(len(counts), most, -1)
        gathered = torch.cat([gathered[rank, :count] for rank, count in enumerate(counts)])  # [all T, bytes]
        sizes = [part.shape[1] * part.element_size() for part in (x, weights, chosen.int())]
        parts = [part.contiguous() for part in gathered.split(sizes, dim=1)]
        return parts[0].view(x.dtype), parts[1].view(weights.dtype), parts[2].view(torch.int32).long(), counts

    def combine(self, total: Tensor, counts: list[int]) -> Tensor:
        """Return this engine's rows of the sum over all engines; `total` is [all T, size] float32."""
        if not sum(counts):
            return total
        before = sum(counts[: self._group.rank])
        return self._group.all_reduce(total)[before : before + counts[self._group.rank]]


def _as_bytes(x: Tensor) -> Tensor:  # [T, n] → [T, bytes]
    return x.contiguous().view(torch.uint8)


class SparseMoE(nn.Module):
    """Each token goes to the `top_k` experts that the router scores highest (Shazeer et al., 2017).

    `renormalise` makes a token's weights sum to 1.
    """

    def __init__(
        self,
        size: int,
        inner: int,
        activation: Activation,
        *,
        experts: int,
        top_k: int,
        renormalise: bool,
        placement: Placement,
    ) -> None:
        super().__init__()
        self.gate = Linear(size, experts, bias=False, placement=placement.at("gate"))
        self.experts = Experts(size, inner, activation, experts, placement.at("experts"))
        self._group = placement.parallel.tensor
        data = placement.parallel.data
        self._shared = SharedExperts(data) if data.size > 1 else None
        self._no_tokens = torch.empty(0, size, device=placement.device, dtype=placement.dtype)
        self._top_k = top_k
        self._renormalise = renormalise

    def forward(self, x: Tensor) -> Tensor:  # [T, size]
        weights, chosen = self.gate(x).float().softmax(dim=-1).topk(self._top_k, dim=-1)  # [T, top_k]
        if self._renormalise:
            weights /= weights.sum(dim=-1, keepdim=True)
        return self._computed(x, weights, chosen)

    def forward_empty(self) -> None:
        nothing = torch.empty(0, self._top_k, device=self._no_tokens.device)
        self._computed(self._no_tokens, nothing, nothing.long())

    def _computed(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        if self._shared is None:
            return self._group.all_reduce(self._weighted(x, weights, chosen)).to(x.dtype)
        *tokens, counts = self._shared.dispatch(x, weights, chosen)
        total = self._shared.combine(self._weighted(*tokens), counts)
        return self._group.all_reduce(total).to(x.dtype)

    def _weighted(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        # [T, size] float32, of this rank
        return self.experts.weighted_sum(self.experts(x, chosen), weights)
