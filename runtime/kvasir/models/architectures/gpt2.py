"""GPT-2 (Radford et al., 2019): LayerNorm, learned positions, multi-head attention, GELU."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn

from kvasir.layers.activation import ACTIVATIONS
from kvasir.layers.attention import AttentionPlan, HeadShape, KVCache
from kvasir.layers.embedding import Embedding, VocabEmbedding
from kvasir.layers.kv import BlockShape, KVSpec, layer_specs
from kvasir.layers.linear import ColumnLinear, RowLinear, VocabHead
from kvasir.layers.mlp import MLP
from kvasir.layers.norm import LayerNorm
from kvasir.layers.parameter import Placement
from kvasir.models.causal_lm import Target
from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import check_layer_types
from kvasir.models.forward_batch import ForwardBatch, Hidden, Intermediate
from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.split_check import Splits, refuse_split, stage_of
from kvasir.parallel.parallel_state import ParallelState


@dataclass(frozen=True)
class GPT2Config:
    vocab_size: int
    positions: int
    hidden_size: int
    inner_size: int
    num_layers: int
    heads: HeadShape
    activation: Callable[[Tensor], Tensor]
    layer_norm_eps: float
    scale: float
    scale_by_inverse_layer: bool
    tied: bool


def read_config(config: Mapping[str, Any]) -> GPT2Config:
    reader = ConfigReader(config)
    hidden_size = _either(reader, "n_embd", "hidden_size", 768)
    heads = _either(reader, "n_head", "num_attention_heads", 12)
    num_layers = _either(reader, "n_layer", "num_hidden_layers", 12)
    check_layer_types(reader, [None] * num_layers)
    if hidden_size % heads:
        raise ModelLoadError(f"config.json sets n_embd to {hidden_size}, which n_head = {heads} does not divide")
    head_dim = hidden_size // heads
    reader.require("add_cross_attention", False, elsewhere=True)
    gpt2 = GPT2Config(
        vocab_size=reader.integer("vocab_size", 50257),
        positions=_either(reader, "n_positions", "max_position_embeddings", 1024),
        hidden_size=hidden_size,
        inner_size=reader.integer("n_inner", 4 * hidden_size),
        num_layers=num_layers,
        heads=HeadShape(heads, heads, head_dim),
        activation=reader.choice("activation_function", "gelu_new", ACTIVATIONS),
        layer_norm_eps=reader.number("layer_norm_epsilon", 1e-5),
        scale=head_dim**-0.5 if reader.flag("scale_attn_weights", True) else 1.0,
        scale_by_inverse_layer=reader.flag("scale_attn_by_inverse_layer_idx", False),
        tied=reader.flag("tie_word_embeddings", True),
    )
    # n_ctx repeats n_positions in old files; reorder_and_upcast_attn is for float16 training.
    reader.finish(NO_EFFECT | {"n_ctx", "reorder_and_upcast_attn"})
    return gpt2


def _either(reader: ConfigReader, name: str, alias: str, default: int) -> int:
    value = reader.integer(name, reader.integer(alias, default))
    reader.require(alias, value)
    return value


def _check_split(config: GPT2Config, parallel: ParallelState) -> None:
    heads, inner = config.heads, config.inner_size
    refuse_split(parallel.tensor.size, [Splits("n_head", heads.heads), Splits("n_inner", inner)])


class GPT2Attention(nn.Module):
    def __init__(self, config: GPT2Config, layer: int, placement: Placement) -> None:
        super().__init__()
        size = config.hidden_size
        self.c_attn = ColumnLinear(  # the checkpoint has q, k and v as one tensor; each is split by itself
            size,
            {"q": size, "k": size, "v": size},
            bias=True,
            placement=placement.at("c_attn"),
            transposed=True,
        )
        self.c_proj = RowLinear(size, size, bias=True, placement=placement.at("c_proj"), transposed=True)
        self._scale = config.scale / (layer + 1 if config.scale_by_inverse_layer else 1)

    def forward(self, x: Tensor, cache: KVCache, plan: AttentionPlan) -> Tensor:
        attended = plan.write_and_attend(self.c_attn(x), cache, self._scale)
        return self.c_proj(attended)  # type: ignore[no-any-return]


class GPT2Layer(nn.Module):
    def __init__(self, config: GPT2Config, layer: int, placement: Placement) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config.hidden_size, config.layer_norm_eps, placement)
        self.attn = GPT2Attention(config, layer, placement.at("attn"))
        self.ln_2 = LayerNorm(config.hidden_size, config.layer_norm_eps, placement)
        self.mlp = MLP(
            config.hidden_size,
            config.inner_size,
            config.activation,
            bias=True,
            placement=placement.at("mlp"),
            transposed=True,
        )

    def forward(self, x: Tensor, cache: KVCache, plan: AttentionPlan) -> None:
        # Adds to x [T, hidden] in place.
        x.add_(self.attn(self.ln_1(x), cache, plan))
        x.add_(self.mlp(self.ln_2(x)))


class GPT2(nn.Module):
    def __init__(self, config: Mapping[str, Any], placement: Placement, context: int) -> None:
        super().__init__()
        gpt2 = read_config(config)
        if context > gpt2.positions:
            raise ModelLoadError(f"config.json sets n_positions to {gpt2.positions}, less than {context} tokens")
        _check_split(gpt2, placement.parallel)
        self.stage = stage = stage_of("n_layer", gpt2.num_layers, placement.parallel)
        self.heads = gpt2.heads.local(placement.parallel.tensor.size)
        self.vocab_size, self.hidden_size = gpt2.vocab_size, gpt2.hidden_size
        self.windows: tuple[int | None, ...] = (None,) * gpt2.num_layers
        embeds = stage.first or (stage.last and gpt2.tied)
        self.wte = VocabEmbedding(gpt2.vocab_size, gpt2.hidden_size, placement) if embeds else None
        self.wpe = Embedding(gpt2.positions, gpt2.hidden_size, placement) if stage.first else None
        self.h = nn.ModuleDict(
            {str(layer): GPT2Layer(gpt2, layer, placement.at(f"h.{layer}")) for layer in stage.layers}
        )
        self.ln_f = LayerNorm(gpt2.hidden_size, gpt2.layer_norm_eps, placement) if stage.last else None
        self.lm_head = _head(gpt2, placement.at("lm_head"), self.wte) if stage.last else None
        self._tied = gpt2.tied

    def kv_specs(self, block: BlockShape, max_model_len: int) -> Sequence[KVSpec]:
        return layer_specs(block, self.windows, max_model_len)

    def forward(self, batch: ForwardBatch) -> Hidden | Intermediate:
        x = self._embed(batch) if self.stage.first else batch.residual  # [T, hidden]
        for layer, cache in zip(self.h.values(), batch.caches, strict=True):
            layer(x, cache, batch.attention[cache.group])
        return Intermediate(x) if self.ln_f is None else Hidden(self.ln_f(x))

    def _embed(self, batch: ForwardBatch) -> Tensor:  # [T, hidden]
        tokens, positions = self.wte, self.wpe
        assert tokens is not None, "the first stage has the embeddings"
        assert positions is not None, "the first stage has the embeddings"
        return tokens(batch.token_ids).add_(positions(batch.positions))  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        head = self.lm_head
        assert head is not None, "the last stage has the head"
        return head(hidden)  # type: ignore[no-any-return]

    def locate(self, tensor: str) -> Target | None:
        name = tensor.removeprefix("transformer.")
        if _CAUSAL_MASK.fullmatch(name):
            return None
        last = _LAST_WITH_EMBEDDING if self._tied else _LAST
        if not self.stage.holds(name, layers="h", first=_FIRST, last=last):
            return None
        return Target(name.replace(".mlp.c_fc.", ".mlp.fc1.").replace(".mlp.c_proj.", ".mlp.fc2."))

    def aliases(self) -> Mapping[str, Target]:
        return {"lm_head.weight": Target("wte.weight")} if self._tied and self.wte is not None else {}


def _head(config: GPT2Config, placement: Placement, embedding: VocabEmbedding | None) -> VocabHead:
    tied = embedding.weight if config.tied and embedding is not None else None
    return VocabHead(config.hidden_size, config.vocab_size, bias=False, placement=placement, tied=tied)


_FIRST: Final = frozenset(("wte", "wpe"))
_LAST: Final = frozenset(("ln_f", "lm_head"))
_LAST_WITH_EMBEDDING: Final = _LAST | {"wte"}

# Buffers of the attention mask, in old checkpoints.
_CAUSAL_MASK = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")
