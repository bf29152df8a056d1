"""The decoder of Llama and its family, or a pipeline stage of it, built by a DecoderConfig."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor, nn

from kvasir.layers.attention import AttentionPlan, KVCache
from kvasir.layers.embedding import VocabEmbedding
from kvasir.layers.few_rows import FewRows, few_rows_for
from kvasir.layers.kv import BlockShape, KVSpec, layer_specs
from kvasir.layers.linear import ColumnLinear, RowLinear, VocabHead
from kvasir.layers.mlp import GatedMLP
from kvasir.layers.moe import SparseMoE
from kvasir.layers.norm import Norm, RMSNorm
from kvasir.layers.parameter import Placement
from kvasir.layers.rotary import RotaryEmbedding, Rotation
from kvasir.models.causal_lm import Target
from kvasir.models.decoder_config import DecoderConfig, LayerConfig
from kvasir.models.forward_batch import ForwardBatch, Hidden, Intermediate
from kvasir.models.split_check import check_split, stage_of

_NO_NAMES: Final = MappingProxyType[str, str]({})


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
        )
        self.o_proj = RowLinear(
            heads.query_size, config.hidden_size, bias=config.output_bias, placement=placement.at("o_proj")
        )
        self.q_norm = config.norm(heads.head_dim, config.eps, placement) if config.qk_norm else None
        self.k_norm = config.norm(heads.head_dim, config.eps, placement) if config.qk_norm else None
        self._heads = heads.local(ranks)
        self._scale = config.scale
        self._cap = config.score_cap
        self._window = layer.window

    def forward(self, x: Tensor, rotation: Rotation, cache: KVCache, plan: AttentionPlan) -> Tensor:
        return self.o_proj(self.attend(self.qkv_proj(x), rotation, cache, plan))  # type: ignore[no-any-return]

    def attend(self, qkv: Tensor, rotation: Rotation, cache: KVCache, plan: AttentionPlan) -> Tensor:
        # [T, (heads + 2 kv_heads) * head_dim] → [T, heads * head_dim]. Changes qkv.
        heads = self._heads
        if self.q_norm is not None and self.k_norm is not None:
            by_head = qkv.unflatten(1, (-1, heads.head_dim))
            self.q_norm.normalise_(by_head[:, : heads.heads])
            self.k_norm.normalise_(by_head[:, heads.heads : heads.heads + heads.kv_heads])
        return plan.write_and_attend(
            qkv, cache, self._scale, window=self._window, softcap=self._cap, rotation=rotation
        )


class DecoderLayer(nn.Module):
    """Attention, then a feed-forward layer. Both read the normalised residual stream and add to it.

    A kernel adds and normalises at once, so the next norm makes a layer's last addition.
    """

    def __init__(self, config: DecoderConfig, layer: LayerConfig, placement: Placement) -> None:
        super().__init__()

        def norm() -> Norm:
            return config.norm(config.hidden_size, config.eps, placement)

        self.input_layernorm = norm()
        self.self_attn = Attention(config, layer, placement.at("self_attn"))
        self.attention_output_norm = norm() if config.output_norms else nn.Identity()
        self.post_attention_layernorm = norm()
        self.mlp = _feed_forward(config, layer, placement.at("mlp"))
        self.mlp_output_norm = norm() if config.output_norms else nn.Identity()
        self._few_rows = None if config.output_norms else self._choose_few_rows()

    def _choose_few_rows(self) -> FewRows | None:
        attention, norms = self.self_attn, (self.input_layernorm, self.post_attention_layernorm)
        return few_rows_for((attention.qkv_proj, attention.o_proj), norms, self.mlp)

    def forward(
        self, x: Tensor, added: Tensor | None, rotation: Rotation, cache: KVCache, plan: AttentionPlan
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
        self, few_rows: FewRows, x: Tensor, rotation: Rotation, cache: KVCache, plan: AttentionPlan
    ) -> None:
        attention, mlp = self.self_attn, self.mlp
        assert isinstance(self.input_layernorm, RMSNorm)
        assert isinstance(self.post_attention_layernorm, RMSNorm)
        assert isinstance(mlp, GatedMLP)
        qkv = few_rows.normed(x, self.input_layernorm, attention.qkv_proj)
        few_rows.add_product_(x, attention.attend(qkv, rotation, cache, plan), attention.o_proj)
        few_rows.add_product_(x, few_rows.normed_gate(x, self.post_attention_layernorm, mlp), mlp.down_proj)


def _feed_forward(config: DecoderConfig, layer: LayerConfig, placement: Placement) -> nn.Module:
    experts = layer.experts
    if experts is None:
        return GatedMLP(
            config.hidden_size,
            config.intermediate_size,
            config.activation,
            bias=config.mlp_bias,
            placement=placement,
        )
    return SparseMoE(
        config.hidden_size,
        experts.intermediate_size,
        config.activation,
        experts=experts.count,
        top_k=experts.top_k,
        renormalise=experts.renormalise,
        placement=placement,
    )


class Decoder(nn.Module):
    """A whole decoder, or a pipeline stage of it.

    `context`: the longest request in tokens. `names` maps parts of the checkpoint's tensor names to ours.
    """

    def __init__(
        self,
        config: DecoderConfig,
        placement: Placement,
        context: int,
        *,
        layer: Callable[[DecoderConfig, LayerConfig, Placement], nn.Module] = DecoderLayer,
        names: Mapping[str, str] = _NO_NAMES,
    ) -> None:
        super().__init__()
        check_split(config, placement.parallel)
        self.stage = stage = stage_of("num_hidden_layers", len(config.layers), placement.parallel)
        self.heads = config.heads.local(placement.parallel.tensor.size)
        self.vocab_size, self.hidden_size = config.vocab_size, config.hidden_size
        self.windows = tuple(entry.window for entry in config.layers)
        embeds = stage.first or (stage.last and config.tied)
        self.embed_tokens = VocabEmbedding(config.vocab_size, config.hidden_size, placement) if embeds else None
        own = {index: config.layers[index] for index in stage.layers}
        self.layers = nn.ModuleDict(
            {str(index): layer(config, entry, placement.at(f"layers.{index}")) for index, entry in own.items()}
        )
        self.norm = config.norm(config.hidden_size, config.eps, placement) if stage.last else None
        self.lm_head = _head(config, placement.at("lm_head"), self.embed_tokens) if stage.last else None
        ropes = list(dict.fromkeys(entry.rope for entry in own.values()))
        self._rotaries = [RotaryEmbedding(rope, context, placement.device) for rope in ropes]
        self._rope_of_layer = [ropes.index(entry.rope) for entry in own.values()]
        # Rounded to the model's precision, in which it was trained.
        scale = torch.tensor(config.embedding_scale or 1.0, dtype=placement.dtype).item()
        self._embedding_scale = None if config.embedding_scale is None else scale
        self._logit_cap = config.logit_cap
        self._tied = config.tied
        self._names = names

    def kv_specs(self, block: BlockShape, max_model_len: int) -> Sequence[KVSpec]:
        return layer_specs(block, self.windows, max_model_len)

    def fit_context(self, context: int) -> None:
        for rotary in self._rotaries:
            rotary.fit_context(context)

    def forward(self, batch: ForwardBatch) -> Hidden | Intermediate:
        x = self._embed(batch.token_ids) if self.stage.first else batch.residual  # [T, hidden]
        rotations = [rotary.rotation(batch.positions, x.dtype) for rotary in self._rotaries]
        added: Tensor | None = None
        for layer, rope, cache in zip(self.layers.values(), self._rope_of_layer, batch.caches, strict=True):
            added = layer(x, added, rotations[rope], cache, batch.attention[cache.group])
        if self.norm is None:
            return Intermediate(x if added is None else x.add_(added))
        return Hidden(self.norm(x, added))

    def _embed(self, token_ids: Tensor) -> Tensor:  # [T] → [T, hidden]
        embed = self.embed_tokens
        assert embed is not None, "the first stage has the embedding"
        x: Tensor = embed(token_ids)
        return x if self._embedding_scale is None else x.mul_(self._embedding_scale)

    def logits(self, hidden: Tensor) -> Tensor:
        head = self.lm_head
        assert head is not None, "the last stage has the head"
        logits: Tensor = head(hidden)
        if self._logit_cap is None:
            return logits
        return logits.float().div_(self._logit_cap).tanh_().mul_(self._logit_cap)

    def locate(self, tensor: str) -> Target | None:
        if tensor.endswith(".rotary_emb.inv_freq"):  # computed from the config; old checkpoints carry it
            return None
        path = [self._names.get(part, part) for part in tensor.removeprefix("model.").split(".")]
        index = None
        if len(path) > 3 and path[-4] == "experts" and path[-3].isdecimal():
            index = int(path.pop(-3))
        shard = path[-2] if len(path) > 1 else ""
        fused = _FUSED.get(shard)
        if fused is not None:
            path[-2] = fused
        parameter = ".".join(path)
        last = _LAST_WITH_EMBEDDING if self._tied else _LAST
        if not self.stage.holds(parameter, layers="layers", first=_FIRST, last=last):
            return None
        return Target(parameter, "" if fused is None else shard, index)

    def aliases(self) -> Mapping[str, Target]:
        tied = self._tied and self.embed_tokens is not None
        return {"lm_head.weight": Target("embed_tokens.weight")} if tied else {}


def _head(config: DecoderConfig, placement: Placement, embedding: VocabEmbedding | None) -> VocabHead:
    tied = embedding.weight if config.tied and embedding is not None else None
    return VocabHead(config.hidden_size, config.vocab_size, bias=config.head_bias, placement=placement, tied=tied)


_FIRST: Final = frozenset(("embed_tokens",))
_LAST: Final = frozenset(("norm", "lm_head"))
_LAST_WITH_EMBEDDING: Final = _FIRST | _LAST

_FUSED: Final = MappingProxyType(
    {
        "q_proj": "qkv_proj",
        "k_proj": "qkv_proj",
        "v_proj": "qkv_proj",
        "gate_proj": "gate_up_proj",
        "up_proj": "gate_up_proj",
    }
)
