"""Decoders that generate also make vectors, of their last hidden states: the ones of transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import Gemma3TextModel, Qwen3Config

from kvasir.request.pool_params import PoolParams
from runtime.models.pooling.tiny_encoders import PooledModel, prompts, random_classifier
from runtime.models.quantised.test_formats import pair
from runtime.models.tiny import MODELS, save

RAW = PoolParams(normalize=False)


@pytest.mark.parametrize("name", ["qwen3", "mistral", "gemma2", "gemma3", "gpt2", "phi", "llama-gqa"])
def test_decoder_pools_its_last_hidden_states(name: str, tmp_path: Path) -> None:
    reference = MODELS[name]()
    model = PooledModel(save(reference, tmp_path), task="embed", modes=("lasttoken", "mean"))
    texts = prompts(seed=3, count=4)
    for tokens, vector in zip(texts, model.vectors(texts, RAW), strict=True):
        with torch.no_grad():
            hidden = reference.base_model(torch.tensor([tokens])).last_hidden_state[0]
        expected = torch.cat((hidden[-1], hidden.mean(0)))
        np.testing.assert_allclose(vector, expected.numpy(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["gptq", "bnb-nf4-nested", "fp8-block"])
def test_quantised_decoder_pools_as_its_floats(name: str, tmp_path: Path) -> None:
    quantised, floats = (PooledModel(path, task="embed") for path in pair(tmp_path, name))
    texts = [[token % 32 for token in tokens] for tokens in prompts(seed=6, count=3)]
    for vector, expected in zip(quantised.vectors(texts, RAW), floats.vectors(texts, RAW), strict=True):
        np.testing.assert_allclose(vector, expected, atol=1e-3, rtol=1e-3)


def test_bidirectional_decoder_reads_later_tokens(tmp_path: Path) -> None:
    reference = MODELS["gemma3"]()
    save(reference, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "use_bidirectional_attention": True}))
    both = Gemma3TextModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    model = PooledModel(tmp_path, task="embed", modes=("mean",))
    texts = prompts(seed=4, count=3)
    for tokens, vector in zip(texts, model.vectors(texts, RAW), strict=True):
        with torch.no_grad():
            expected = both(torch.tensor([tokens])).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(vector, expected.numpy(), atol=1e-4, rtol=1e-4)


def test_embedding_gemma_has_its_files_of_sentence_transformers(tmp_path: Path) -> None:
    """Both directions, the mean, two dense layers and a norm."""
    reference = MODELS["gemma3"]()
    save(reference, tmp_path)
    changes = {"architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True}
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    size = reference.config.hidden_size
    dense = {folder: torch.randn(shape) for folder, shape in (("2", (2 * size, size)), ("3", (size, 2 * size)))}
    modules = [("Transformer", ""), ("Pooling", "1"), ("Dense", "2"), ("Dense", "3"), ("Normalize", "4")]
    for kind, folder in modules:
        (tmp_path / folder).mkdir(exist_ok=True)
        if kind == "Dense":
            outputs, inputs = dense[folder].shape
            save_file({"linear.weight": dense[folder]}, tmp_path / folder / "model.safetensors")
            form = {"in_features": inputs, "out_features": outputs, "bias": False}
            identity = "torch.nn.modules.linear.Identity"
            (tmp_path / folder / "config.json").write_text(json.dumps(form | {"activation_function": identity}))
    (tmp_path / "1/config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    types = [{"type": f"sentence_transformers.models.{kind}", "path": folder} for kind, folder in modules]
    (tmp_path / "modules.json").write_text(json.dumps(types))
    model = PooledModel(tmp_path)
    both = Gemma3TextModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    tokens = prompts(seed=9, count=1)[0]
    with torch.no_grad():
        mean = both(torch.tensor([tokens])).last_hidden_state[0].mean(0)
    expected = torch.nn.functional.normalize(dense["3"] @ (dense["2"] @ mean), dim=-1)
    np.testing.assert_allclose(model.vectors([tokens])[0], expected, atol=1e-4, rtol=1e-4)


def test_decoder_scores_labels_by_its_last_token(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_labels": 3, "pad_token_id": 0}
    config = Qwen3Config(**sizes | heads)
    reference = random_classifier(config)

    reference.save_pretrained(tmp_path)
    model = PooledModel(tmp_path)
    for tokens in prompts(seed=5, count=2):
        with torch.no_grad():
            expected = reference(torch.tensor([tokens])).logits[0]
        found = model.vectors([tokens], PoolParams(activate=False))[0]
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-4, rtol=1e-4)
