"""The encoder of BERT and its family (Devlin et al., 2019): each layer normalises after its additions."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
from kvasir.layers.norm import LayerNorm
from kvasir.layers.parameter import Placement
from kvasir.layers.rotary import Rope, RotaryEmbedding, Rotation
from kvasir.models.causal_lm import Target
from kvasir.models.forward_batch import ForwardBatch, Hidden
from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.split_check import Splits, refuse_split, stage_of

_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.)")
# Of the first checkpoints of BERT.
_OLD_KINDS: Final = {"gamma": "weight", "beta": "bias"}


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
    rope: Rope | None = None
    is_gated: bool = False
    biases: bool = True
    # Places of tensors: "encoder.layer.N.output.dense" → "layers.N.mlp.fc2"; "#q" at the end names a shard.
    names: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""  # of all names, in a checkpoint with a head


class _Attention(nn.Module):
    def __init__(self, config: EncoderConfig, placement: Placement) -> None:
        super().__init__()
        size, heads = config.hidden_size, config.heads
        self.qkv = ColumnLinear(
            size, {"q": size, "k": size, "v": size}, bias=config.biases, placement=placement.at("qkv")
        )
        self.out = RowLinear(size, size, bias=config.biases, placement=placement.at("out"))
        self._rule = ScoreRule(heads.head_dim**-0.5)

    def forward(self, x: Tensor, plan: PackedPlan, rotation: Rotation | None, bias: Bias | None) -> Tensor:
        attended = plan.attend_packed(self.qkv(x), self._rule, rotation, bias)
        return self.out(attended)  # type: ignore[no-any-return]


class _Layer(nn.Module):
    def __init__(self, config: EncoderConfig, placement: Placement) -> None:
        super().__init__()
        size = config.hidden_size
        self.attention = _Attention(config, placement.at("attention"))
        self.attention_norm = LayerNorm(size, config.eps, placement)
        self.mlp: nn.Module
        if config.is_gated:
            self.mlp = GatedMLP(
                size, config.intermediate_size, config.activation, bias=config.biases, placement=placement.at("mlp")
            )
        else:
            self.mlp = MLP(
                size, config.intermediate_size, config.activation, bias=True, placement=placement.at("mlp")
            )
        self.mlp_norm = LayerNorm(size, config.eps, placement)

    def forward(self, x: Tensor, plan: PackedPlan, rotation: Rotation | None, bias: Bias | None) -> Tensor:
        x = self.attention_norm(x, self.attention(x, plan, rotation, bias))
        return self.mlp_norm(x, self.mlp(x))  # type: ignore[no-any-return]


class _Embeddings(nn.Module):
    def __init__(self, config: EncoderConfig, placement: Placement) -> None:
        super().__init__()
        size = config.hidden_size
        self.word = VocabEmbedding(config.vocab_size, size, placement)
        self.position = Embedding(config.positions, size, placement) if config.positions else None
        self.token_type = Embedding(config.token_types, size, placement) if config.token_types else None
        self.norm = LayerNorm(size, config.eps, placement)
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
        self.windows: tuple[int | None, ...] = (None,) * config.num_layers
        self.embeddings = _Embeddings(config, placement)
        self.layers = nn.ModuleList(_Layer(config, placement.at(f"layers.{i}")) for i in range(config.num_layers))
        buckets = config.relative_buckets
        self.relative = Embedding(buckets, config.heads.heads, placement) if buckets else None
        first = ranks.rank * self.heads.heads
        self._own_heads = slice(first, first + self.heads.heads)
        self._rotary = None if config.rope is None else RotaryEmbedding(config.rope, context, placement.device)
        self._names = config.names
        self._prefix = config.prefix

    def kv_specs(self, block: BlockShape, max_model_len: int) -> Sequence[KVSpec]:
        return layer_specs(block, self.windows, max_model_len)

    def forward(self, batch: ForwardBatch) -> Hidden:
        plan = batch.attention[0]
        assert isinstance(plan, PackedPlan), "an encoder has no KV cache"
        x: Tensor = self.embeddings(batch)
        rotation = None if self._rotary is None else self._rotary.rotation(batch.positions, x.dtype)
        bias = None if self.relative is None else self._bias(self.relative)
        for layer in self.layers:
            x = layer(x, plan, rotation, bias)
        return Hidden(x)

    def _bias(self, relative: Embedding) -> Bias:
        made: dict[int, Tensor] = {}  # by length; all layers share it

        def bias(length: int) -> Tensor:
            if length not in made:
                places = torch.arange(length, device=relative.weight.device)
                buckets = relative_bucket(places[None] - places[:, None], relative.weight.shape[0])
                made[length] = relative(buckets).permute(2, 0, 1)[self._own_heads]
            return made[length]

        return bias

    def locate(self, tensor: str) -> Target | None:
        stem, _, kind = tensor.removeprefix(self._prefix).rpartition(".")
        number = _NUMBER.search(stem)
        place = self._names.get(stem if number is None else _NUMBER.sub("N", stem, count=1))
        if place is None:
            # embeddings.position_ids counts up.
            return None if tensor.endswith("embeddings.position_ids") else Target(tensor)
        parameter, _, shard = place.partition("#")
        if number is not None:
            parameter = parameter.replace("N", number[0], 1)
        return Target(f"{parameter}.{_OLD_KINDS.get(kind, kind)}", shard)

    def aliases(self) -> Mapping[str, Target]:
        return {}


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


Read = Callable[[Mapping[str, object]], EncoderConfig]
