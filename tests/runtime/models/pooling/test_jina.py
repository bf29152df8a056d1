"""Jina Embeddings 2 against its formula: transformers has no code for it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from kvasir.layers.attention_backends import packed_plan
from kvasir.models.pooling.encoder import Encoder, alibi_slopes
from kvasir.parallel.parallel_state import ParallelState
from kvasir.request.pool_params import PoolParams
from runtime.models.pooling.tiny_encoders import VOCAB, PooledModel, prompts
from runtime.parallel.thread_group import run_ranks

SIZE, INNER, HEADS, LAYERS = 48, 64, 6, 3
CONFIG = {
    "architectures": ["JinaBertForMaskedLM"], "attention_probs_dropout_prob": 0.0, "attn_implementation": None,
    "emb_pooler": "mean", "feed_forward_type": "geglu", "hidden_act": "gelu", "hidden_size": SIZE,
    "intermediate_size": INNER, "layer_norm_eps": 1e-12, "max_position_embeddings": 64, "model_max_length": 64,
    "model_type": "bert", "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "pad_token_id": 0,
    "position_embedding_type": "alibi", "type_vocab_size": 2, "vocab_size": VOCAB,
}  # fmt: skip


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (VOCAB, SIZE),
        "embeddings.token_type_embeddings.weight": (2, SIZE),
        **_norm("embeddings.LayerNorm"),
        **_linear("pooler.dense", SIZE, SIZE),
    }
    for index in range(LAYERS):
        layer = f"encoder.layer.{index}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= _linear(f"{layer}.attention.{name}", SIZE, SIZE)
        shapes |= _norm(f"{layer}.attention.output.LayerNorm") | _norm(f"{layer}.mlp.layernorm")
        shapes[f"{layer}.mlp.gated_layers.weight"] = (2 * INNER, SIZE)
        shapes |= _linear(f"{layer}.mlp.wo", INNER, SIZE)
    made = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    save_file(made, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return made


def _linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (SIZE,), f"{name}.bias": (SIZE,)}


def by_formula(weights: dict[str, Tensor], tokens: list[int]) -> Tensor:
    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (SIZE,), weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-12)

    embedded = (
        weights["embeddings.word_embeddings.weight"][tokens] + weights["embeddings.token_type_embeddings.weight"][0]
    )
    x = norm(embedded, "embeddings.LayerNorm")
    places = torch.arange(len(tokens))
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])
    alibi = -(places[None] - places[:, None]).abs() * slopes[:, None, None]
    for index in range(LAYERS):
        layer = f"encoder.layer.{index}"
        q, k, v = (
            linear(x, f"{layer}.attention.self.{name}").view(len(tokens), HEADS, -1).transpose(0, 1)
            for name in ("query", "key", "value")
        )
        read = (q @ k.mT / (SIZE // HEADS) ** 0.5 + alibi).softmax(-1) @ v
        attended = linear(read.transpose(0, 1).reshape(len(tokens), SIZE), f"{layer}.attention.output.dense")
        x = norm(x + attended, f"{layer}.attention.output.LayerNorm")
        gate, up = linear(x, f"{layer}.mlp.gated_layers").chunk(2, -1)
        x = norm(linear(F.gelu(gate) * up, f"{layer}.mlp.wo") + x, f"{layer}.mlp.layernorm")
    return x.mean(0)


def test_jina_equals_its_formula_on_any_ranks(weights: dict[str, Tensor], tmp_path: Path) -> None:
    texts, raw = prompts(seed=11, count=4), PoolParams(normalize=False)
    model = PooledModel(tmp_path)
    found = model.vectors(texts, raw)
    split = run_ranks(2, lambda group: PooledModel(tmp_path, parallel=ParallelState(group)).vectors(texts, raw))
    for place, tokens in enumerate(texts):
        expected = by_formula(weights, tokens)
        np.testing.assert_allclose(found[place], expected, atol=2e-5, rtol=2e-5)
        np.testing.assert_allclose(split[1][place], expected, atol=2e-5, rtol=2e-5)
        np.testing.assert_array_equal(model.vectors([tokens], raw)[0], found[place])


def test_jina_adds_its_bias_to_a_few_queries_at_once(
    weights: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_plan, "MAX_BIASED_QUERIES", 5)
    made, bias_of = [], Encoder._bias_of

    def counted(encoder: Encoder, queries: slice, length: int) -> Tensor:
        made.append(bias_of(encoder, queries, length))
        return made[-1]

    monkeypatch.setattr(Encoder, "_bias_of", counted)
    tokens = list(range(1, 14))
    (found,) = PooledModel(tmp_path).vectors([tokens], PoolParams(normalize=False))
    np.testing.assert_allclose(found, by_formula(weights, tokens), atol=2e-5, rtol=2e-5)
    assert {each.shape[1] for each in made} == {5, 3}


@pytest.mark.parametrize(("heads", "last"), [(8, 2.0**-8), (12, 2.0**-3.5)])
def test_alibi_slopes_fill_up_between_powers_of_two(heads: int, last: float) -> None:
    slopes = alibi_slopes(heads).tolist()
    assert len(slopes) == heads
    assert (slopes[0], slopes[-1]) == pytest.approx((0.5, last))
