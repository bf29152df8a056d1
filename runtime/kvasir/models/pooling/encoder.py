"""The encoder of BERT and its family (Devlin et al., 2019), and of its successors with rotary positions.

BERT's layers normalise after their additions, ModernBERT's before attention and feed-forward layer.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor, nn

from kvasir.layers.activation import Activation
from kvasir.layers.attention import HeadShape, ScoreRule
from kvasir.layers.attention_backends.packed_plan import Bias, PackedPlan
from kvasir.layers.embedding import Embedding, VocabEmbedding
from kvasir.layers.kv import BlockShape, KVSpec, layer_specs
from kvasir.layers.linear import ColumnLinear, RowLinear
from kvasir.layers.mlp import MLP, GatedMLP
from kvasir.layers.norm import LayerNorm, NoNorm, Norm
from kvasir.layers.parameter import Placement
from kvasir.layers.rotary import Rope, RotaryEmbedding, Rotation
from kvasir.models.causal_lm import Target
from kvasir.models.forward_batch import ForwardBatch, Hidden
from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.split_check import Splits, refuse_split, stage_of

_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.)")
# Of the first checkpoints of BERT.
_OLD_KINDS: Final = {"gamma": "weight", "beta": "bias"}

_COMPUTED: Final = ("embeddings.position_ids", "embeddings.token_type_ids", "rotary_emb.inv_freq")


@dataclass(frozen=True)
class FeedForwardGate:
    """A gated feed-forward layer. `up_first`: a tensor of both halves begins with the one that is not activated."""

    bias: bool
    output_bias: bool
    up_first: bool = False


@dataclass(frozen=True)
class EncoderConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: HeadShape
    num_layers: int
    activation: Activation
    eps: float
    positions: int = 0  # entries of the table of positions; 0: there is none
    first_position: int = 0
    token_types: int = 0  # 0: tokens have no types
    relative_buckets: int = 0  # of MPNet's relative positions; 0: there are none
    alibi: bool = False  # scores fall with the distance (Press et al., 2022), on both sides
    rope: Rope | None = None
    local_rope: Rope | None = None  # of layers with a window; None: that of all
    windows: tuple[int | None, ...] = ()  # by layer, half on each side; empty: there are none
    norm: Callable[[int, float, Placement], Norm] = LayerNorm
    norms_before: bool = False
    gate: FeedForwardGate | None = None  # None: the feed-forward layer is not gated
    attention_bias: bool = True
    # Places of tensors: "encoder.layer.N.output.dense" → "layers.N.mlp.fc2"; "#q" at the end names a shard.
    names: Mapping[str, str] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ()  # of all names, in a checkpoint with a head


class _Attention(nn.Module):
    def __init__(self, config: EncoderConfig, window: int | None, placement: Placement) -> None:
        super().__init__()
        size, bias = config.hidden_size, config.attention_bias
        self.qkv = ColumnLinear(size, {"q": size, "k": size, "v": size}, bias=bias, placement=placement.at("qkv"))
        self.out = RowLinear(size, size, bias=bias, placement=placement.at("out"))
        self._rule = ScoreRule(config.heads.head_dim**-0.5, window)

    def forward(self, x: Tensor, plan: PackedPlan, rotation: Rotation | None, bias: Bias | None) -> Tensor:
        attended = plan.attend_packed(self.qkv(x), self._rule, rotation, bias)
        return self.out(attended)  # type: ignore[no-any-return]


class _Layer(nn.Module):
    def __init__(self, config: EncoderConfig, index: int, placement: Placement) -> None:
        super().__init__()
        size = config.hidden_size
        self.attention = _Attention(config, config.windows[index], placement.at("attention"))
        # ModernBERT's first layer reads the norm of the embeddings.
        is_normed = config.norms_before and index == 0
        self.attention_norm = NoNorm() if is_normed else config.norm(size, config.eps, placement)
        self.mlp = _feed_forward(config, placement.at("mlp"))
        self.mlp_norm = config.norm(size, config.eps, placement)
        self._norms_before = config.norms_before

    def forward(self, x: Tensor, plan: PackedPlan, rotation: Rotation | None, bias: Bias | None) -> Tensor:
        if self._norms_before:
            x.add_(self.attention(self.attention_norm(x), plan, rotation, bias))
            return x.add_(self.mlp(self.mlp_norm(x)))
        x = self.attention_norm(x, self.attention(x, plan, rotation, bias))
        return self.mlp_norm(x, self.mlp(x))  # type: ignore[no-any-return]


def _feed_forward(config: EncoderConfig, placement: Placement) -> nn.Module:
    size, inner, gate = config.hidden_size, config.intermediate_size, config.gate
    if gate is None:
        return MLP(size, inner, config.activation, bias=True, placement=placement)
    return GatedMLP(
        size,
        inner,
        config.activation,
        bias=gate.bias,
        output_bias=gate.output_bias,
        up_first=gate.up_first,
        placement=placement,
    )


class _Embeddings(nn.Module):
    def __init__(self, config: EncoderConfig, placement: Placement) -> None:
        super().__init__()
        size = config.hidden_size
        self.word = VocabEmbedding(config.vocab_size, size, placement)
        self.position = Embedding(config.positions, size, placement) if config.positions else None
        self.token_type = Embedding(config.token_types, size, placement) if config.token_types else None
        self.norm = config.norm(size, config.eps, placement)
        self._first_position = config.first_position

    def forward(self, batch: ForwardBatch) -> Tensor:  # [T, hidden]
        x: Tensor = self.word(batch.token_ids)
        if self.token_type is not None:
            types = torch.zeros_like(batch.token_ids) if batch.token_types is None else batch.token_types
            x = x + self.token_type(types)
        if self.position is not None:
            x = x + self.position(batch.positions + self._first_position)
        return self.norm(x)  # type: ignore[no-any-return]


class Encoder(nn.Module):
    def __init__(self, config: EncoderConfig, placement: Placement, context: int) -> None:
        super().__init__()
        if config.positions and context > config.positions - config.first_position:
            raise ModelLoadError(
                f"config.json sets max_position_embeddings to {config.positions}, too few for {context} tokens"
            )
        ranks = placement.parallel.tensor
        splits = [
            Splits("num_attention_heads", config.heads.heads),
            Splits("intermediate_size", config.intermediate_size),
        ]
        refuse_split(ranks.size, splits)
        self.stage = stage_of("num_hidden_layers", config.num_layers, placement.parallel)
        self.heads = config.heads.local(ranks.size)
        self.vocab_size, self.hidden_size = config.vocab_size, config.hidden_size
        self.windows = config.windows or (None,) * config.num_layers
        config = replace(config, windows=self.windows)
        self.embeddings = _Embeddings(config, placement)
        self.layers = nn.ModuleList(
            _Layer(config, i, placement.at(f"layers.{i}")) for i in range(config.num_layers)
        )
        buckets = config.relative_buckets
        self.relative = Embedding(buckets, config.heads.heads, placement) if buckets else None
        self._slopes = alibi_slopes(config.heads.heads).to(placement.device) if config.alibi else None
        first = ranks.rank * self.heads.heads
        self._own_heads = slice(first, first + self.heads.heads)
        self.final_norm = config.norm(config.hidden_size, config.eps, placement) if config.norms_before else None
        ropes = (config.rope, config.local_rope or config.rope)  # of layers without a window, and with one
        made = {rope: RotaryEmbedding(rope, context, placement.device) for rope in ropes if rope is not None}
        self._rotaries = list(made.values())
        self._rope_of_layer = [
            -1 if (rope := ropes[window is not None]) is None else list(made).index(rope) for window in self.windows
        ]
        self._names = config.names
        self._prefixes = config.prefixes

    def kv_specs(self, block: BlockShape, max_model_len: int) -> Sequence[KVSpec]:
        return layer_specs(block, self.windows, max_model_len)

    def forward(self, batch: ForwardBatch) -> Hidden:
        plan = batch.attention[0]
        assert isinstance(plan, PackedPlan), "an encoder has no KV cache"
        x: Tensor = self.embeddings(batch)
        rotations = [*(rotary.rotation(batch.positions, x.dtype) for rotary in self._rotaries), None]
        bias = self._bias()
        for layer, rope in zip(self.layers, self._rope_of_layer, strict=True):
            x = layer(x, plan, rotations[rope], bias)
        return Hidden(x if self.final_norm is None else self.final_norm(x))

    def _bias(self) -> Bias | None:
        relative, slopes = self.relative, self._slopes
        if relative is None and slopes is None:
            return None
        made: dict[int, Tensor] = {}  # of short sequences, by length; all layers share it

        def bias(queries: slice, length: int) -> Tensor:
            if queries != slice(0, length):
                return self._bias_of(queries, length)
            if length not in made:
                made[length] = self._bias_of(queries, length)
            return made[length]

        return bias

    def _bias_of(self, queries: slice, length: int) -> Tensor:  # [own heads, queries, length]
        places = torch.arange(length, device=self.embeddings.word.weight.device)
        distances = places[None] - places[queries, None]
        if self.relative is None:
            assert self._slopes is not None
            return distances.abs() * -self._slopes[self._own_heads, None, None]
        buckets = relative_bucket(distances, self.relative.weight.shape[0])
        return self.relative(buckets).permute(2, 0, 1)[self._own_heads]  # type: ignore[no-any-return]

    def locate(self, tensor: str) -> Target | None:
        prefix = next((each for each in self._prefixes if tensor.startswith(each)), "")
        stem, _, kind = tensor.removeprefix(prefix).rpartition(".")
        number = _NUMBER.search(stem)
        place = self._names.get(stem if number is None else _NUMBER.sub("N", stem, count=1))
        if place is None:
            return None if tensor.endswith(_COMPUTED) else Target(tensor)
        parameter, _, shard = place.partition("#")
        if number is not None:
            parameter = parameter.replace("N", number[0], 1)
        return Target(f"{parameter}.{_OLD_KINDS.get(kind, kind)}", shard)

    def aliases(self) -> Mapping[str, Target]:
        return {}


def alibi_slopes(heads: int) -> Tensor:
    """Return ALiBi's slope of each head: 2^(-8/n), 2^(-16/n), … for a power of two n, else also those between.

    >>> alibi_slopes(8)[:2].tolist()
    [0.5, 0.25]
    """
    power = 1 << heads.bit_length() - 1
    slopes = 2.0 ** (-8.0 / power * torch.arange(1, power + 1))
    between = 2.0 ** (-4.0 / power * torch.arange(1, 2 * power + 1, 2))
    return torch.cat((slopes, between[: heads - power]))


def relative_bucket(distances: Tensor, buckets: int, most: int = 128) -> Tensor:
    """Return T5's bucket of each distance from query to key: half of them for each sign, exact near 0.

    >>> relative_bucket(torch.tensor([-2, 0, 3, 500]), 32).tolist()
    [2, 0, 19, 31]
    """
    half = buckets // 2
    exact = half // 2
    back = (distances > 0).long() * half
    far = distances.abs()
    ratio = torch.log(far.clamp(min=1).float() / exact) / torch.log(torch.tensor(most / exact))
    large = (exact + (ratio * (half - exact)).long()).clamp(max=half - 1)
    return back + torch.where(far < exact, far, large)
