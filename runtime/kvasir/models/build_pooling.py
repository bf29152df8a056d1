"""Builds the model of a checkpoint that makes vectors or scores."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import torch.nn.functional as F
from torch import nn

from kvasir.hub.model_info import ModelInfo
from kvasir.hub.pooling.label_tokens import METHOD_KEY, QWEN3_KEY, TOKENS_KEY
from kvasir.hub.pooling.pooling_info import CLASSIFIER, CLASSIFY, PROCESS_REWARD, REWARD, PoolingInfo
from kvasir.layers.parameter import Placement
from kvasir.models.architectures.encoders import bert, gte, modern_bert, nomic_bert
from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.pooling.encoder_family import EncoderFamily
from kvasir.models.pooling.pooling_model import PoolingModel
from kvasir.models.pooling.score_head import ScoreHead, ScoreHeadConfig, TokenScoreHead
from kvasir.models.pooling.vector_head import VectorHead
from kvasir.models.registry import ARCHITECTURES

ENCODERS: Final = MappingProxyType[str, EncoderFamily](
    {
        "Bert": bert.BERT,
        "Camembert": bert.ROBERTA,
        "DistilBert": bert.DISTILBERT,
        "Gte": gte.GTE,
        "JinaBert": bert.JINA,
        "MPNet": bert.MPNET,
        "ModernBert": modern_bert.MODERN_BERT,
        "New": gte.GTE,
        "NomicBert": nomic_bert.NOMIC_BERT,
        "Roberta": bert.ROBERTA,
        "XLMRoberta": bert.ROBERTA,
    }
)
_LABELLED: Final = (CLASSIFIER, PROCESS_REWARD, REWARD)
_SUFFIXES: Final = ("ForMaskedLM", *_LABELLED, "ForCausalLM", "LMHeadModel", "TextModel", "Model")
_OF_POOLING: Final = frozenset((
    *("is_causal", "use_bidirectional_attention", "is_matryoshka", "matryoshka_dimensions"),
    *(TOKENS_KEY, METHOD_KEY, QWEN3_KEY),
))  # fmt: skip
_OF_DECODERS: Final = MappingProxyType({"score": "out"})
_OF_REWARDS: Final = MappingProxyType({"score.0": "dense", "score.2": "out"})


def build_pooling(info: ModelInfo, placement: Placement, context: int) -> PoolingModel:
    """Raises ModelLoadError for an architecture without code here."""
    pooling = info.pooling
    assert pooling is not None
    suffix = next((each for each in _SUFFIXES if info.architecture.endswith(each)), "")
    stem = info.architecture.removesuffix(suffix)
    has_labels = suffix in _LABELLED or pooling.label_tokens is not None
    if pooling.task == CLASSIFY and not has_labels:
        raise ModelLoadError(
            f"--task classify: {info.architecture} has no head for labels, as architectures of the name "
            f"…{CLASSIFIER} have: use --task embed; a reranker that answers with a word needs "
            """--hf-overrides '{"classifier_from_token": ["no", "yes"], "method": "from_2_way_softmax"}'"""
        )
    family = ENCODERS.get(stem)
    if family is None:
        return _of_decoder(stem, info, pooling, placement, context)
    model = family.build(info.config, placement, context)
    if pooling.task == CLASSIFY:
        head = ScoreHead(
            family.head(info.config, len(pooling.labels)), model.hidden_size, pooling.activation, placement
        )
        unused = [each for each in family.unused if not any(name.startswith(each) for name in family.head_names)]
        return PoolingModel(model, head, is_causal=False, names=family.head_names, unused=unused)
    vectors = VectorHead(
        pooling.modes or ("mean",), model.hidden_size, pooling.dense, pooling.normalise, placement.device
    )
    unused = [*family.unused, *family.head_names]
    return PoolingModel(model, vectors, is_causal=False, names={}, unused=unused)


def _of_decoder(
    stem: str, info: ModelInfo, pooling: PoolingInfo, placement: Placement, context: int
) -> PoolingModel:
    build = ARCHITECTURES.get(f"{stem}ForCausalLM") or ARCHITECTURES.get(f"{stem}LMHeadModel")
    if build is None:
        known = sorted({*ENCODERS, *(name.removesuffix("ForCausalLM") for name in ARCHITECTURES)})
        raise ModelLoadError(
            f"the architecture {info.architecture!r} makes no vectors or scores here: supported are models of "
            + ", ".join(known)
        )
    config, is_causal = _direction(info.config)
    model = build(config, placement, context)
    assert isinstance(model, nn.Module)
    if pooling.label_tokens is not None:
        scores = TokenScoreHead(pooling.label_tokens, model.logits, pooling.activation)
        return PoolingModel(model, scores, is_causal=is_causal, names={}, unused=("score.",))
    setattr(model, "lm_head", None)  # noqa: B010  (its weights may be absent, and take memory)
    unused = ["lm_head."]
    if pooling.by_token:
        rewards = ScoreHeadConfig(None, len(pooling.labels), F.relu)
        head = ScoreHead(rewards, model.hidden_size, pooling.activation, placement)
        return PoolingModel(model, head, is_causal=is_causal, names=_OF_REWARDS, unused=unused)
    if pooling.task == CLASSIFY:
        labels = ScoreHeadConfig("lasttoken", len(pooling.labels), bias=False)
        head = ScoreHead(labels, model.hidden_size, pooling.activation, placement)
        return PoolingModel(model, head, is_causal=is_causal, names=_OF_DECODERS, unused=unused)
    vectors = VectorHead(
        pooling.modes or ("lasttoken",), model.hidden_size, pooling.dense, pooling.normalise, placement.device
    )
    return PoolingModel(model, vectors, is_causal=is_causal, names={}, unused=unused)


def _direction(config: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the config without the keys that make a decoder read later tokens, and whether it does not."""
    both = config.get("is_causal") is False or config.get("use_bidirectional_attention") is True
    return {key: value for key, value in config.items() if key not in _OF_POOLING}, not both
