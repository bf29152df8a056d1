"""Encoders compute the vectors of transformers, packed bit-equal to alone."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import BertConfig

from kvasir.parallel.parallel_state import ParallelState
from kvasir.request.pool_params import PoolParams
from runtime.models.pooling.tiny_encoders import (
    CONFIGS,
    VOCAB,
    PooledModel,
    prompts,
    random_classifier,
    random_encoder,
)
from runtime.parallel.thread_group import run_ranks

TOLERANCE = 2e-5


@pytest.mark.parametrize("name", CONFIGS)
def test_encoder_equals_transformers_and_itself_alone(name: str, tmp_path: Path) -> None:
    reference = random_encoder(CONFIGS[name]())
    reference.save_pretrained(tmp_path)
    model = PooledModel(tmp_path, modes=("cls", "mean", "max"))
    texts = prompts(seed=1, count=7)
    found = model.vectors(texts, PoolParams(normalize=False))
    for tokens, vector in zip(texts, found, strict=True):
        with torch.no_grad():
            hidden = reference(torch.tensor([tokens])).last_hidden_state[0]
        expected = torch.cat((hidden[0], hidden.mean(0), hidden.max(0).values))
        np.testing.assert_allclose(vector, expected.numpy(), atol=TOLERANCE, rtol=TOLERANCE)
        (alone,) = model.vectors([tokens], PoolParams(normalize=False))
        np.testing.assert_array_equal(vector, alone)


def test_vector_of_usual_width_does_not_depend_on_the_batch(tmp_path: Path) -> None:
    """Products of few rows have code of their own in torch, if they are as wide as this."""
    config = BertConfig(
        vocab_size=VOCAB, hidden_size=384, intermediate_size=1536, num_hidden_layers=1, num_attention_heads=12
    )
    random_encoder(config).save_pretrained(tmp_path)
    model = PooledModel(tmp_path)
    texts = prompts(seed=12, count=20, longest=8)
    for tokens, vector in zip(texts, model.vectors(texts), strict=True):
        np.testing.assert_array_equal(model.vectors([tokens])[0], vector)


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("name", CONFIGS)
def test_classifier_scores_pairs_as_transformers_does(name: str, labels: int, tmp_path: Path) -> None:
    config = CONFIGS[name]()
    config.num_labels = labels
    reference = random_classifier(config)
    reference.save_pretrained(tmp_path)
    model = PooledModel(tmp_path)
    types = name in ("bert", "nomic")
    for tokens in prompts(seed=2, count=3):
        second = len(tokens) // 2
        inputs = {"input_ids": torch.tensor([tokens])}
        if types:
            inputs["token_type_ids"] = (torch.arange(len(tokens)) >= second).long()[None]
        with torch.no_grad():
            logits = reference(**inputs).logits[0]
        pair = PoolParams(activate=False, second_text=second if types else None)
        np.testing.assert_allclose(model.vectors([tokens], pair)[0], logits, atol=TOLERANCE, rtol=TOLERANCE)
        expected = logits.sigmoid() if labels == 1 else logits.softmax(-1)
        scores = model.vectors([tokens], PoolParams(second_text=pair.second_text))[0]
        np.testing.assert_allclose(scores, expected, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["bert", "gte", "modernbert-biases", "mpnet", "nomic"])
def test_encoder_on_two_ranks_computes_as_on_one(name: str, tmp_path: Path) -> None:
    random_encoder(CONFIGS[name]()).save_pretrained(tmp_path)
    texts = prompts(seed=10, count=3)
    expected = PooledModel(tmp_path).vectors(texts)
    ranks = run_ranks(2, lambda group: PooledModel(tmp_path, parallel=ParallelState(group)).vectors(texts))
    for found in ranks:
        for vector, alone in zip(found, expected, strict=True):
            np.testing.assert_allclose(vector, alone, atol=TOLERANCE, rtol=TOLERANCE)


def test_vector_is_cut_before_it_is_normalised(tmp_path: Path) -> None:
    random_encoder(CONFIGS["bert"]()).save_pretrained(tmp_path)
    model = PooledModel(tmp_path)
    (whole,) = model.vectors([[5, 6, 7]], PoolParams(normalize=False))
    (cut,) = model.vectors([[5, 6, 7]], PoolParams(dimensions=8))
    np.testing.assert_allclose(cut, F.normalize(torch.tensor(whole[:8].copy()), dim=-1), atol=1e-6)
