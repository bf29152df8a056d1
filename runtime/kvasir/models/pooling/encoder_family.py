"""EncoderFamily: how an architecture's encoder and its head for labels are built."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from kvasir.layers.parameter import Placement
from kvasir.models.causal_lm import LoadableTransformer
from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.pooling.encoder import Encoder, EncoderConfig
from kvasir.models.pooling.score_head import ScoreHeadConfig

# Keys of encoders' config.json files.
WITHOUT_EFFECT: Final = NO_EFFECT | {
    *("attention_probs_dropout_prob", "hidden_dropout_prob", "classifier_dropout", "gradient_checkpointing"),
    *("is_decoder", "layerdrop", "directionality", "pooler_fc_size", "pooler_num_attention_heads"),
    *("pooler_num_fc_layers", "pooler_size_per_head", "pooler_type", "sbert_ce_default_activation_function"),
    *("sentence_transformers", "dropout", "qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds"),
    *("output_past", "mask_token_id", "cls_token_id", "unk_token_id", "tie_word_embeddings", "tie_weights_"),
}


@dataclass(frozen=True)
class EncoderFamily:
    read: Callable[[ConfigReader], EncoderConfig]
    # Tensors of the head in checkpoints → "dense" and "out"
    head_names: Mapping[str, str]
    unused: Sequence[str]  # prefixes of tensors of other heads
    # By config.json and the number of labels.
    head: Callable[[Mapping[str, Any], int], ScoreHeadConfig] = lambda _, labels: ScoreHeadConfig(
        "cls", labels, torch.tanh
    )

    def config(self, values: Mapping[str, Any]) -> EncoderConfig:
        """Read a config.json. Raises ModelLoadError for a key that may change the results."""
        reader = ConfigReader(values)
        encoder = self.read(reader)
        reader.finish(WITHOUT_EFFECT)
        return encoder

    def build(self, config: Mapping[str, Any], placement: Placement, context: int) -> LoadableTransformer:
        return Encoder(self.config(config), placement, context)
