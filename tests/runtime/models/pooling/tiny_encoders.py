"""Tiny random encoders, written by transformers, and its hidden states as the reference."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    BertConfig,
    DistilBertConfig,
    GteConfig,
    ModernBertConfig,
    MPNetConfig,
    NomicBertConfig,
    PreTrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    XLMRobertaConfig,
)

from kvasir.hub.model_info import ModelFiles, load_model_info
from kvasir.layers.parameter import Placement
from kvasir.models.load_model import load_pooling
from kvasir.parallel.parallel_state import SINGLE, ParallelState
from kvasir.request.params import SamplingParams
from kvasir.request.pool_params import PoolParams
from kvasir.request.tokens import packed
from kvasir.worker.pooling_runner import PoolingRunner
from kvasir.worker.step import NewRow, ScheduledRow, StepInput

VOCAB = 200
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "initializer_range": 0.2,
}
_SHAPES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "dim": 48,
    "hidden_dim": 96,
    "n_layers": 3,
    "n_heads": 4,
    "initializer_range": 0.2,
}
_IDS: dict[str, Any] = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "cls_token_id": 1,
    "eos_token_id": 2,
    "sep_token_id": 2,
}
_BIASES: dict[str, Any] = {
    "attention_bias": True,
    "classifier_bias": True,
    "classifier_pooling": "mean",
    "mlp_bias": True,
    "norm_bias": True,
}


def _modern_bert(**changes: Any) -> ModernBertConfig:
    sizes = {**_SIZES, "num_hidden_layers": 4, "initializer_cutoff_factor": 3.0}
    return ModernBertConfig(**sizes, **_IDS, local_attention=12, max_position_embeddings=64, **changes)


CONFIGS: Mapping[str, Callable[[], PreTrainedConfig]] = MappingProxyType(
    {
        "bert": lambda: BertConfig(**_SIZES, max_position_embeddings=64),
        "roberta": lambda: RobertaConfig(**_SIZES, max_position_embeddings=66, type_vocab_size=1),
        "xlm-roberta": lambda: XLMRobertaConfig(**_SIZES, max_position_embeddings=66, type_vocab_size=1),
        "distilbert": lambda: DistilBertConfig(**_SHAPES, max_position_embeddings=64),
        "mpnet": lambda: MPNetConfig(**_SIZES, max_position_embeddings=66),
        "gte": lambda: GteConfig(**_SIZES, max_position_embeddings=64),
        "modernbert": lambda: _modern_bert(),
        "modernbert-biases": lambda: _modern_bert(**_BIASES),
        "nomic": lambda: NomicBertConfig(**_SIZES, max_position_embeddings=64),
    }
)


def random_encoder(config: PreTrainedConfig, kind: Any = AutoModel) -> PreTrainedModel:
    """Return a model in which biases and norms are random too."""
    torch.manual_seed(0)
    model: PreTrainedModel = kind.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.normal_(1.0 if "norm" in name.lower() and "weight" in name else 0.0, 0.2)
    return model


def random_classifier(config: PreTrainedConfig) -> PreTrainedModel:
    return random_encoder(config, AutoModelForSequenceClassification)


def prompts(seed: int, count: int, longest: int = 60) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(5, VOCAB, generator.integers(1, longest)).tolist() for _ in range(count)]


class PooledModel:
    """A checkpoint in a worker, in float32."""

    def __init__(self, path: Path, task: str = "auto", parallel: ParallelState = SINGLE, **pooling: Any) -> None:
        self.info = load_model_info(path, ModelFiles(task=task))
        assert self.info.pooling is not None
        self.info = dataclasses.replace(self.info, pooling=dataclasses.replace(self.info.pooling, **pooling))
        placement = Placement(torch.device("cpu"), torch.float32, parallel, True, scheme=self.info.weight_scheme)
        model = load_pooling(self.info, placement, self.info.max_model_len, lambda *_: None, "auto")
        self._runner = PoolingRunner(model, placement.device)

    def vectors(
        self,
        prompts: Sequence[Sequence[int]],
        params: PoolParams = PoolParams(),  # noqa: B008
    ) -> list[npt.NDArray[np.float32]]:
        """Return the vectors of prompts of one step."""
        rows = [
            NewRow(str(i), packed(tokens), len(tokens), SamplingParams(max_tokens=1, seed=0), params)
            for i, tokens in enumerate(prompts)
        ]
        scheduled = [ScheduledRow(row.request_id, 0, row.num_prompt_tokens, [[]]) for row in rows]
        output = self._runner.execute(StepInput([], rows, scheduled))
        assert not output.failed
        return [np.frombuffer(output.pooled[place], "<f4") for place in range(len(rows))]
