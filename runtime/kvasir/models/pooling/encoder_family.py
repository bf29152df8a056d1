"""EncoderFamily: how an architecture's encoder and its head for labels are built."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvasir.layers.parameter import Placement
from kvasir.models.causal_lm import LoadableTransformer
from kvasir.models.pooling.encoder import Encoder, EncoderConfig
from kvasir.models.pooling.score_head import ScoreHeadConfig


@dataclass(frozen=True)
class EncoderFamily:
    read: Callable[[Mapping[str, Any]], EncoderConfig]
    head: Callable[[int], ScoreHeadConfig]  # by the number of labels
    # Tensors of that head in checkpoints → "dense" and "out"
    head_names: Mapping[str, str]
    unused: Sequence[str]  # prefixes of tensors of other heads

    def build(self, config: Mapping[str, Any], placement: Placement, context: int) -> LoadableTransformer:
        return Encoder(self.read(config), placement, context)
