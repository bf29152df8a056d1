"""A mixture of experts: each token goes to some of them (Shazeer et al., 2017)."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from kvasir.layers.activation import Activation, sigmoid
from kvasir.layers.linear import Linear
from kvasir.layers.mlp import GatedMLP
from kvasir.layers.moe.expert_exchange import ExpertExchange
from kvasir.layers.moe.expert_routing import Routing
from kvasir.layers.moe.experts import ExpertForm, Experts
from kvasir.layers.parameter import Placement


@dataclass(frozen=True)
class SharedExpert:
    """An expert of all tokens. If `gated`, the sigmoid of a product weights it (Qwen2-MoE)."""

    intermediate_size: int
    gated: bool = False
    bias: bool = False


@dataclass(frozen=True)
class ExpertsConfig:
    routing: Routing
    intermediate_size: int
    # None: that of the decoder.
    activation: Activation | None = None
    form: ExpertForm = field(default_factory=ExpertForm)
    shared: SharedExpert | None = None
    router_bias: bool = False
    # Logits of the router are computed in float32.
    exact_router: bool = False
    # Weights multiply the inputs of experts instead of their outputs (Llama 4).
    weights_inputs: bool = False


class SparseMoE(nn.Module):
    def __init__(self, size: int, config: ExpertsConfig, activation: Activation, placement: Placement) -> None:
        super().__init__()
        routing, exact = config.routing, replace(placement, dtype=torch.float32)
        self.gate = Linear(
            size,
            routing.count,
            bias=config.router_bias,
            placement=(exact if config.exact_router else placement).at("gate"),
        )
        self.router = routing.router(placement.at("router"))
        self.experts = Experts(
            size,
            config.intermediate_size,
            config.activation or activation,
            routing.count,
            placement.at("experts"),
            config.form,
        )
        shared = config.shared
        self.shared_expert = self.shared_expert_gate = None
        if shared is not None:
            at = placement.at("shared_expert")
            self.shared_expert = GatedMLP(
                size, shared.intermediate_size, activation, bias=shared.bias, placement=at
            )
            if shared.gated:
                self.shared_expert_gate = Linear(size, 1, bias=False, placement=placement.at("shared_expert_gate"))
        self._group = placement.parallel.tensor
        data = placement.parallel.data
        self._exchange = ExpertExchange(data) if data.size > 1 else None
        self._no_tokens = torch.empty(0, size, device=placement.device, dtype=placement.dtype)
        self._top_k = routing.top_k
        self._router_dtype = torch.float32 if config.exact_router else placement.dtype
        self._weights_inputs = config.weights_inputs

    def forward(self, x: Tensor) -> Tensor:  # [T, size]
        weights, chosen = self.router(self.gate(x.to(self._router_dtype)).float())  # [T, top_k]
        total = self._computed(x, weights, chosen)
        if self.shared_expert is None:
            return total
        shared = self.shared_expert(x)
        if self.shared_expert_gate is not None:
            shared = shared * sigmoid(self.shared_expert_gate(x))
        return total.add_(shared)

    def forward_empty(self) -> None:
        nothing = torch.empty(0, self._top_k, device=self._no_tokens.device)
        self._computed(self._no_tokens, nothing, nothing.long())

    def _computed(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        if self._exchange is None:
            return self._group.all_reduce(self._weighted(x, weights, chosen)).to(x.dtype)
        *tokens, counts = self._exchange.dispatch(x, weights, chosen)
        total = self._exchange.combine(self._weighted(*tokens), counts)
        return self._group.all_reduce(total).to(x.dtype)

    def _weighted(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        # [T, size] float32, of this rank
        if not self._weights_inputs:
            return self.experts.weighted_sum(self.experts(x, chosen), weights)
        scaled = (x[:, None] * weights[:, :, None].to(x.dtype)).flatten(0, 1)  # [T * top_k, size]
        parts = self.experts(scaled, chosen.reshape(-1, 1)).view(*chosen.shape, x.shape[1])
        return self.experts.weighted_sum(parts, torch.ones_like(weights))
