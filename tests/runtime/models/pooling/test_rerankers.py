"""Rerankers that answer with a word, and reward models: the logits and scores of transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from torch import Tensor

from kvasir.parallel.parallel_state import ParallelState
from kvasir.request.pool_params import PoolParams
from runtime.models.pooling.tiny_encoders import PooledModel, prompts
from runtime.models.tiny import MODELS, save
from runtime.parallel.thread_group import run_ranks

LOGITS = PoolParams(activate=False)


def changed(path: Path, **config: Any) -> None:
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))


def write_tokenizer(path: Path) -> None:
    words = {"no": 7, "yes": 9, "[UNK]": 0}
    Tokenizer(models.WordLevel(words, unk_token="[UNK]")).save(str(path / "tokenizer.json"))


@pytest.mark.parametrize("name", ["qwen3", "qwen2", "gemma2"])
@pytest.mark.parametrize("method", ["from_2_way_softmax", "no_post_processing"])
def test_scores_are_logits_of_the_tokens(name: str, method: str, tmp_path: Path) -> None:
    reference = MODELS[name]()
    save(reference, tmp_path)
    write_tokenizer(tmp_path)
    architecture = type(reference).__name__.replace("ForCausalLM", "ForSequenceClassification")
    changed(tmp_path, architectures=[architecture], classifier_from_token=["no", "yes"], method=method)
    model = PooledModel(tmp_path)
    (split, _) = run_ranks(2, lambda group: PooledModel(tmp_path, parallel=ParallelState(group)).vectors([[5, 6]]))
    np.testing.assert_allclose(split[0], model.vectors([[5, 6]])[0], atol=1e-5)
    for tokens in prompts(seed=7, count=2):
        with torch.no_grad():
            logits = reference(torch.tensor([tokens])).logits[0, -1]
        each = logits[[7, 9]]
        expected = each[1:] - each[:1] if method == "from_2_way_softmax" else each
        np.testing.assert_allclose(model.vectors([tokens], LOGITS)[0], expected, atol=1e-4, rtol=1e-4)
        (score,) = model.vectors([tokens])
        # The published formula is a softmax of the two logits.
        np.testing.assert_allclose(score[-1], torch.softmax(each, -1)[1], atol=1e-5)


def test_files_of_sentence_transformers_name_the_tokens(tmp_path: Path) -> None:
    reference = MODELS["qwen3"]()
    save(reference, tmp_path)
    names = ("Transformer", ""), ("LogitScore", "1_LogitScore")
    modules = [{"type": f"sentence_transformers.modules.{name}", "path": path} for name, path in names]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_LogitScore").mkdir()
    (tmp_path / "1_LogitScore/config.json").write_text(json.dumps({"true_token_id": 9, "false_token_id": 7}))
    model = PooledModel(tmp_path)
    with torch.no_grad():
        logits = reference(torch.tensor([[5, 6, 8]])).logits[0, -1]
    np.testing.assert_allclose(model.vectors([[5, 6, 8]], LOGITS)[0], (logits[9] - logits[7])[None], atol=1e-4)


def with_reward_head(path: Path, architecture: str, labels: int) -> tuple[Any, list[Tensor]]:
    reference = MODELS["qwen2"]()
    save(reference, path)
    changed(path, architectures=[architecture])
    size = reference.config.hidden_size
    generator = torch.Generator().manual_seed(0)
    shapes = (size, size), (size,), (labels, size), (labels,)
    head = [torch.randn(shape, generator=generator) * 0.1 for shape in shapes]
    names = "score.0.weight", "score.0.bias", "score.2.weight", "score.2.bias"
    weights = load_file(path / "model.safetensors")
    save_file(weights | dict(zip(names, head, strict=True)), path / "model.safetensors")
    return reference, head


@pytest.mark.parametrize(("kind", "labels"), [("ForRewardModel", 1), ("ForProcessRewardModel", 2)])
def test_reward_model_scores_each_token(kind: str, labels: int, tmp_path: Path) -> None:
    reference, (weight, bias, last, last_bias) = with_reward_head(tmp_path, f"Qwen2{kind}", labels)
    model = PooledModel(tmp_path)
    texts = prompts(seed=8, count=3)
    for tokens, found in zip(texts, model.vectors(texts), strict=True):
        with torch.no_grad():
            hidden = reference.base_model(torch.tensor([tokens])).last_hidden_state[0]
        scores = torch.relu(hidden @ weight.T + bias) @ last.T + last_bias
        expected = scores if labels == 1 else scores.softmax(-1)
        np.testing.assert_allclose(found.reshape(-1, labels), expected, atol=1e-4, rtol=1e-4)
