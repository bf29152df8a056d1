"""Llama (Touvron et al., 2023; Llama 3: Dubey et al., 2024): RMSNorm, rotary positions, GQA, SwiGLU."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from kvasir.layers.activation import ACTIVATIONS
from kvasir.layers.attention import AttentionPlan, HeadShape, KVCache, attend
from kvasir.layers.embedding import Embedding
from kvasir.layers.linear import Linear
from kvasir.layers.norm import RMSNorm
from kvasir.layers.parameter import Placement
from kvasir.layers.rotary import RopeScaling, RotaryEmbedding, Rotation, rotate_
from kvasir.models.base import Target
from kvasir.models.config_reader import NO_EFFECT, ConfigReader, read_rope
from kvasir.models.errors import ModelLoadError


@dataclass(frozen=True)
class LlamaConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    heads: HeadShape
    activation: Callable[[Tensor], Tensor]
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tied: bool
    attention_bias: bool
    mlp_bias: bool


def read_config(config: Mapping[str, Any]) -> LlamaConfig:
    """Raises ModelLoadError for what is missing, contradictory or unknown."""
    reader = ConfigReader(config)
    hidden_size = reader.integer("hidden_size")
    heads = reader.integer("num_attention_heads")
    kv_heads = reader.integer("num_key_value_heads", heads)
    head_dim = reader.integer("head_dim", hidden_size // heads)
    if heads % kv_heads:
        raise ModelLoadError(
            f"config.json sets num_attention_heads to {heads} and num_key_value_heads to {kv_heads}: "
            "the first must be a multiple of the second"
        )
    if head_dim % 2:
        raise ModelLoadError(f"config.json sets head_dim to {head_dim}; rotary positions need an even number")
    theta, scaling = read_rope(reader, reader.integer("max_position_embeddings", 2048))
    llama = LlamaConfig(
        vocab_size=reader.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=reader.integer("intermediate_size"),
        num_layers=reader.integer("num_hidden_layers"),
        heads=HeadShape(heads, kv_heads, head_dim),
        activation=reader.choice("hidden_act", "silu", ACTIVATIONS),
        rms_norm_eps=reader.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        tied=reader.flag("tie_word_embeddings", False),
        attention_bias=reader.flag("attention_bias", False),
        mlp_bias=reader.flag("mlp_bias", False),
    )
    reader.finish(NO_EFFECT)
    return llama


class LlamaAttention(nn.Module):
    def __init__(self, config: LlamaConfig, placement: Placement) -> None:
        super().__init__()
        self.heads = config.heads
        query_size = config.heads.heads * config.heads.head_dim
        kv_size = config.heads.kv_heads * config.heads.head_dim
        bias = config.attention_bias
        self.qkv_proj = Linear(
            config.hidden_size,
            {"q_proj": query_size, "k_proj": kv_size, "v_proj": kv_size},
            bias=bias,
            placement=placement,
        )
        self.o_proj = Linear(query_size, config.hidden_size, bias=bias, placement=placement)
        self._rotated_size = query_size + kv_size
        self._scale = config.heads.head_dim**-0.5

    def forward(self, x: Tensor, rotation: Rotation, cache: KVCache, plan: AttentionPlan) -> Tensor:
        qkv = self.qkv_proj(x)  # [T, (heads + 2 kv_heads) * head_dim]
        rotate_(qkv[:, : self._rotated_size].unflatten(1, (-1, self.heads.head_dim)), rotation)
        attended = attend(qkv, cache, plan, self.heads, self._scale)
        return self.o_proj(attended)  # type: ignore[no-any-return]


class LlamaMLP(nn.Module):
    def __init__(self, config: LlamaConfig, placement: Placement) -> None:
        super().__init__()
        size, bias = config.intermediate_size, config.mlp_bias
        self.gate_up_proj = Linear(
            config.hidden_size, {"gate_proj": size, "up_proj": size}, bias=bias, placement=placement
        )
        self.down_proj = Linear(size, config.hidden_size, bias=bias, placement=placement)
        self._activation = config.activation

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(self._activation(gate).mul_(up))  # type: ignore[no-any-return]


class LlamaLayer(nn.Module):
    def __init__(self, config: LlamaConfig, placement: Placement) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, placement)
        self.self_attn = LlamaAttention(config, placement)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, placement)
        self.mlp = LlamaMLP(config, placement)

    def forward(self, x: Tensor, rotation: Rotation, cache: KVCache, plan: AttentionPlan) -> None:
        """Adds to the residual stream x [T, hidden] in place."""
        x.add_(self.self_attn(self.input_layernorm(x), rotation, cache, plan))
        x.add_(self.mlp(self.post_attention_layernorm(x)))


class Llama(nn.Module):
    """LlamaForCausalLM."""

    def __init__(self, config: Mapping[str, Any], placement: Placement) -> None:
        super().__init__()
        llama = read_config(config)
        self.num_layers = llama.num_layers
        self.heads = llama.heads
        self.vocab_size = llama.vocab_size
        self.embed_tokens = Embedding(llama.vocab_size, llama.hidden_size, placement)
        self.layers = nn.ModuleList(LlamaLayer(llama, placement) for _ in range(llama.num_layers))
        self.norm = RMSNorm(llama.hidden_size, llama.rms_norm_eps, placement)
        self.lm_head = Linear(
            llama.hidden_size,
            llama.vocab_size,
            bias=False,
            placement=placement,
            tied=self.embed_tokens.weight if llama.tied else None,
        )
        self._rotary = RotaryEmbedding(llama.heads.head_dim, llama.rope_theta, llama.rope_scaling, placement.device)
        self._tied = llama.tied

    def hidden_states(
        self, token_ids: Tensor, positions: Tensor, caches: Sequence[KVCache], plan: AttentionPlan
    ) -> Tensor:
        x = self.embed_tokens(token_ids)  # [T, hidden]
        rotation = self._rotary.rotation(positions, x.dtype)
        for layer, cache in zip(self.layers, caches, strict=True):
            layer(x, rotation, cache, plan)
        return self.norm(x)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)  # type: ignore[no-any-return]

    def locate(self, tensor: str) -> Target | None:
        if tensor.endswith(".rotary_emb.inv_freq"):  # computed from the config; old checkpoints carry it
            return None
        path = tensor.removeprefix("model.").split(".")
        shard = path[-2] if len(path) > 1 else ""
        fused = _FUSED.get(shard)
        if fused is None:
            return Target(".".join(path))
        path[-2] = fused
        return Target(".".join(path), shard)

    def aliases(self) -> Mapping[str, Target]:
        return {"lm_head.weight": Target("embed_tokens.weight")} if self._tied else {}


_FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}
