"""The decoder of Llama and its family, or a pipeline stage of it, built by a DecoderConfig."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor, nn

from kvasir.layers.embedding import Embedding, VocabEmbedding
from kvasir.layers.kv import BlockShape, KVSpec, layer_specs
from kvasir.layers.linear import VocabHead
from kvasir.layers.parameter import Placement
from kvasir.layers.rotary import RotaryEmbedding
from kvasir.models.causal_lm import Target
from kvasir.models.decoder_config import DecoderConfig
from kvasir.models.decoder_layer import new_layer
from kvasir.models.forward_batch import ForwardBatch, Hidden, Intermediate
from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.split_check import check_split, stage_of


class Decoder(nn.Module):
    """A whole decoder, or a pipeline stage of it.

    `context`: the longest request in tokens.
    """

    def __init__(self, config: DecoderConfig, placement: Placement, context: int) -> None:
        super().__init__()
        check_split(config, placement.parallel)
        placement = replace(placement, renamed={ours: theirs for theirs, ours in config.names.items()})
        self.stage = stage = stage_of(config.key("num_hidden_layers"), len(config.layers), placement.parallel)
        self.heads = config.heads.local(placement.parallel.tensor.size)
        self.vocab_size, self.hidden_size = config.vocab_size, config.hidden_size
        self.windows = tuple(entry.window for entry in config.layers)
        embeds = stage.first or (stage.last and config.tied)
        self.embed_tokens = VocabEmbedding(config.vocab_size, config.hidden_size, placement) if embeds else None
        own = {index: config.layers[index] for index in stage.layers}
        self.embed_positions = _position_embedding(config, context, placement) if stage.first else None
        self.layers = nn.ModuleDict(
            {str(index): new_layer(config, entry, placement.at(f"layers.{index}")) for index, entry in own.items()}
        )
        self.norm = config.norm(config.hidden_size, config.eps, placement) if stage.last else None
        self.lm_head = _head(config, placement.at("lm_head"), self.embed_tokens) if stage.last else None
        ropes = list(dict.fromkeys(entry.rope for entry in own.values() if entry.rope is not None))
        self._rotaries = [RotaryEmbedding(rope, context, placement.device) for rope in ropes]
        self._rope_of_layer = [-1 if entry.rope is None else ropes.index(entry.rope) for entry in own.values()]
        # Rounded to the model's precision, in which it was trained.
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=placement.dtype).item()
        self._logit_scale, self._logit_cap = config.logit_scale, config.logit_cap
        self._first_position = config.first_position
        self._tied = config.tied
        self._rename = _renamer(config.names)
        self._unused = tuple(f"{part}." for part in config.unused)

    def kv_specs(self, block: BlockShape, max_model_len: int) -> Sequence[KVSpec]:
        return layer_specs(block, self.windows, max_model_len)

    def fit_context(self, context: int) -> None:
        for rotary in self._rotaries:
            rotary.fit_context(context)

    def forward(self, batch: ForwardBatch) -> Hidden | Intermediate:
        x = self._embed(batch) if self.stage.first else batch.residual  # [T, hidden]
        rotations = [*(rotary.rotation(batch.positions, x.dtype) for rotary in self._rotaries), None]
        added: Tensor | None = None
        for layer, rope, cache in zip(self.layers.values(), self._rope_of_layer, batch.caches, strict=True):
            added = layer(x, added, rotations[rope], cache, batch.attention[cache.group])
        if self.norm is None:
            return Intermediate(x if added is None else x.add_(added))
        return Hidden(self.norm(x, added))

    def _embed(self, batch: ForwardBatch) -> Tensor:  # [T, hidden]
        embed = self.embed_tokens
        assert embed is not None, "the first stage has the embedding"
        x: Tensor = embed(batch.token_ids)
        if self.embed_positions is not None:
            first = self._first_position
            x.add_(self.embed_positions(batch.positions + first if first else batch.positions))
        return x if self._embedding_scale == 1 else x.mul_(self._embedding_scale)

    def logits(self, hidden: Tensor) -> Tensor:
        head = self.lm_head
        assert head is not None, "the last stage has the head"
        logits: Tensor = head(hidden)
        if self._logit_scale != 1:
            logits = logits.mul_(self._logit_scale)
        if self._logit_cap is None:
            return logits
        return logits.float().div_(self._logit_cap).tanh_().mul_(self._logit_cap)

    def locate(self, tensor: str) -> Target | None:
        if _COMPUTED.fullmatch(tensor):
            return None
        name = _PREFIX.sub("", tensor, count=1)
        if name.startswith(self._unused):
            return None
        path = self._rename(name).split(".")
        index = _expert_of(path)
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


def _expert_of(path: list[str]) -> int | None:
    """Change the path of a tensor of experts to that of our parameter, and return the expert's index.

    None: it is not of an expert, or of all experts: experts.gate_up_proj, experts.gate_up_proj_bias.
    """
    if len(path) > 3 and path[-4] == "experts" and path[-3].isdecimal():
        return int(path.pop(-3))
    stacked = _STACKED.fullmatch(path[-1])
    if stacked is not None and len(path) > 1 and path[-2] == "experts":
        path[-1:] = [stacked[1], stacked[2] or "weight"]
    return None


def _renamer(names: Mapping[str, str]) -> Callable[[str], str]:
    if not names:
        return str
    longest_first = sorted(names, key=len, reverse=True)
    pattern = re.compile(rf"(?<![^.])({'|'.join(map(re.escape, longest_first))})(?![^.])")  # whole parts
    return lambda tensor: pattern.sub(lambda match: names[match[0]], tensor)


def _position_embedding(config: DecoderConfig, context: int, placement: Placement) -> Embedding | None:
    if config.positions is None:
        return None
    if context > config.positions:
        raise ModelLoadError(f"config.json has {config.positions} positions, less than {context} tokens")
    return Embedding(config.first_position + config.positions, config.hidden_size, placement)


def _head(config: DecoderConfig, placement: Placement, embedding: VocabEmbedding | None) -> VocabHead:
    tied = embedding.weight if config.tied and embedding is not None else None
    return VocabHead(config.hidden_size, config.vocab_size, bias=config.head_bias, placement=placement, tied=tied)


_PREFIX: Final = re.compile(r"^(?:model|transformer|gpt_neox)\.")
# Frequencies and masks, in old checkpoints.
_COMPUTED: Final = re.compile(r".+\.(?:rotary_emb\.inv_freq|att(?:ention|n)\.(?:bias|masked_bias))")

_FIRST: Final = frozenset(("embed_tokens", "embed_positions"))
_LAST: Final = frozenset(("norm", "lm_head"))
_LAST_WITH_EMBEDDING: Final = _LAST | {"embed_tokens"}

_STACKED: Final = re.compile(r"(gate_up_proj|down_proj)(?:_(bias))?")

_FUSED: Final = MappingProxyType(
    {
        "q_proj": "qkv_proj",
        "k_proj": "qkv_proj",
        "v_proj": "qkv_proj",
        "gate_proj": "gate_up_proj",
        "up_proj": "gate_up_proj",
    }
)
