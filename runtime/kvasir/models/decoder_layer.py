"""The layers of a decoder, composed from the parts of a DecoderConfig: attention, feed-forward layer, norms."""

import torch
from torch import Tensor, nn

from kvasir.layers.attention import AttentionPlan, KVCache, ScoreRule
from kvasir.layers.few_rows import FewRows, few_rows_for
from kvasir.layers.layout import Layout, Split
from kvasir.layers.linear import ColumnLinear, RowLinear
from kvasir.layers.mlp import GatedMLP
from kvasir.layers.moe.sparse_moe import SparseMoE
from kvasir.layers.norm import NoNorm, Norm, RMSNorm, Scaled
from kvasir.layers.parameter import Placement, TensorLoader, parameter_with
from kvasir.layers.qk_norm import HeadSplit
from kvasir.layers.rotary import Rotation, halves_first_, rotate_qk_
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, Order


class Attention(nn.Module):
    """Rotary self-attention of grouped heads over the paged cache."""

    def __init__(self, config: DecoderConfig, layer: LayerConfig, placement: Placement) -> None:
        super().__init__()
        heads, ranks = config.heads, placement.parallel.tensor.size
        copies = heads.kv_copies(ranks)
        self.qkv_proj = ColumnLinear(
            config.hidden_size,
            {"q_proj": heads.query_size, "k_proj": heads.kv_size, "v_proj": heads.kv_size},
            bias=config.qkv_bias,
            placement=placement.at("qkv_proj"),
            copies={"k_proj": copies, "v_proj": copies},
            groups=heads.kv_heads if config.grouped_qkv else 1,
            transposed=config.transposed,
        )
        self.o_proj = RowLinear(
            heads.query_size,
            config.hidden_size,
            bias=config.output_bias,
            placement=placement.at("o_proj"),
            transposed=config.transposed,
        )
        self.q_norm = self.k_norm = None
        if config.qk_norm is not None and layer.qk_norm:
            self.q_norm = config.qk_norm(HeadSplit(heads.heads, heads.head_dim), config.eps, placement)
            self.k_norm = config.qk_norm(HeadSplit(heads.kv_heads, heads.head_dim, copies), config.eps, placement)
        self.sinks = _sinks(heads.heads, placement) if config.sinks else None
        self._rule = ScoreRule(config.scale * layer.scale, layer.window, config.score_cap, self.sinks)
        self._heads = heads.local(ranks)
        self._halved = layer.rope.dim if layer.rope is not None and layer.rope.interleaved else 0
        self._rotates_first = config.rotates_first
        grows = layer.rope is not None and layer.rope.query_growth is not None
        self._prepares = self.q_norm is not None or self._halved > 0 or grows

    def forward(self, x: Tensor, rotation: Rotation | None, cache: KVCache, plan: AttentionPlan) -> Tensor:
        return self.o_proj(self.attend(self.qkv_proj(x), rotation, cache, plan))  # type: ignore[no-any-return]

    def attend(self, qkv: Tensor, rotation: Rotation | None, cache: KVCache, plan: AttentionPlan) -> Tensor:
        # [T, (heads + 2 kv_heads) * head_dim] → [T, heads * head_dim]. Changes qkv.
        if self._prepares:
            rotation = self._prepare(qkv, rotation)
        return plan.write_and_attend(qkv, cache, self._rule, rotation)

    def _prepare(self, qkv: Tensor, rotation: Rotation | None) -> Rotation | None:
        # Returns the rotation that is left to do.
        heads, by_head = self._heads, qkv.unflatten(1, (-1, self._heads.head_dim))
        if rotation is not None and rotation.query_factors is not None:
            by_head[:, : heads.heads].mul_(rotation.query_factors)
        if self._rotates_first and rotation is not None:
            rotate_qk_(qkv, heads.kv_heads, heads.head_dim, rotation)
            rotation = None
        if self.q_norm is not None and self.k_norm is not None:
            self.q_norm.normalise_(by_head[:, : heads.heads])
            self.k_norm.normalise_(by_head[:, heads.heads : heads.heads + heads.kv_heads])
        if self._halved:
            halves_first_(by_head[:, : heads.heads + heads.kv_heads], self._halved)
        return rotation


def _sinks(heads: int, placement: Placement) -> nn.Parameter:
    group = placement.parallel.tensor
    layout = Layout((heads,), split=Split(0, group.rank, group.size))
    return parameter_with(TensorLoader(layout), layout.local_shape, placement, torch.float32)


def new_layer(config: DecoderConfig, layer: LayerConfig, placement: Placement) -> nn.Module:
    parallel = config.order in (Order.PARALLEL, Order.PARALLEL_TWO_NORMS)
    return (ParallelLayer if parallel else DecoderLayer)(config, layer, placement)


class DecoderLayer(nn.Module):
    """Attention, then a feed-forward layer. Both read the residual stream and add to it.

    A kernel adds and normalises at once, so the next norm makes a layer's last addition.
    """

    def __init__(self, config: DecoderConfig, layer: LayerConfig, placement: Placement) -> None:
        super().__init__()
        self.input_layernorm = _norm_before(config, placement)
        self.self_attn = Attention(config, layer, placement.at("self_attn"))
        self.attention_output_norm = _norm_after(config, placement)
        self.post_attention_layernorm = _norm_before(config, placement)
        self.mlp = _feed_forward(config, layer, placement.at("mlp"))
        self.mlp_output_norm = _norm_after(config, placement)
        self._few_rows = self._choose_few_rows() if isinstance(self.mlp_output_norm, nn.Identity) else None

    def _choose_few_rows(self) -> FewRows | None:
        attention, norms = self.self_attn, (self.input_layernorm, self.post_attention_layernorm)
        return few_rows_for((attention.qkv_proj, attention.o_proj), norms, self.mlp)

    def forward(
        self, x: Tensor, added: Tensor | None, rotation: Rotation | None, cache: KVCache, plan: AttentionPlan
    ) -> Tensor | None:
        """Return the last part that this layer adds to the residual stream x [T, hidden], or None.

        Other parts are added in place, after `added`, the last part of the layer before.
        """
        few_rows = self._few_rows
        if few_rows is not None and x.shape[0] <= few_rows.max_rows:
            if added is not None:
                x.add_(added)
            self._compute_few(few_rows, x, rotation, cache, plan)
            return None
        attended = self.self_attn(self.input_layernorm(x, added), rotation, cache, plan)
        normalised = self.post_attention_layernorm(x, self.attention_output_norm(attended))
        return self.mlp_output_norm(self.mlp(normalised))  # type: ignore[no-any-return]

    def _compute_few(
        self, few_rows: FewRows, x: Tensor, rotation: Rotation | None, cache: KVCache, plan: AttentionPlan
    ) -> None:
        attention, mlp = self.self_attn, self.mlp
        assert isinstance(self.input_layernorm, RMSNorm)
        assert isinstance(self.post_attention_layernorm, RMSNorm)
        assert isinstance(mlp, GatedMLP)
        qkv = few_rows.normed(x, self.input_layernorm, attention.qkv_proj)
        few_rows.add_product_(x, attention.attend(qkv, rotation, cache, plan), attention.o_proj)
        few_rows.add_product_(x, few_rows.normed_gate(x, self.post_attention_layernorm, mlp), mlp.down_proj)


class ParallelLayer(nn.Module):
    """Attention and a feed-forward layer that read the same residual stream."""

    def __init__(self, config: DecoderConfig, layer: LayerConfig, placement: Placement) -> None:
        super().__init__()
        two_norms = config.order is Order.PARALLEL_TWO_NORMS
        self.input_layernorm = config.norm(config.hidden_size, config.eps, placement)
        self.self_attn = Attention(config, layer, placement.at("self_attn"))
        self.post_attention_layernorm = (
            config.norm(config.hidden_size, config.eps, placement) if two_norms else None
        )
        self.mlp = _feed_forward(config, layer, placement.at("mlp"))

    def forward(
        self, x: Tensor, added: Tensor | None, rotation: Rotation | None, cache: KVCache, plan: AttentionPlan
    ) -> Tensor:
        normalised = self.input_layernorm(x, added)
        norm = self.post_attention_layernorm
        second = normalised if norm is None else norm(x)
        x.add_(self.self_attn(normalised, rotation, cache, plan))
        return self.mlp(second)  # type: ignore[no-any-return]


def _norm_before(config: DecoderConfig, placement: Placement) -> Norm:
    return NoNorm() if config.order is Order.AFTER else config.norm(config.hidden_size, config.eps, placement)


def _norm_after(config: DecoderConfig, placement: Placement) -> nn.Module:
    if config.order is not Order.BEFORE:
        return config.norm(config.hidden_size, config.eps, placement)
    return nn.Identity() if config.residual_scale == 1 else Scaled(config.residual_scale)


def _feed_forward(config: DecoderConfig, layer: LayerConfig, placement: Placement) -> nn.Module:
    experts = layer.experts
    if experts is None:
        return config.mlp(
            config.hidden_size,
            config.intermediate_size,
            config.activation,
            bias=config.mlp_bias,
            placement=placement,
        )
    return SparseMoE(config.hidden_size, experts, config.activation, placement)
