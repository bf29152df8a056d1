"""LLM.embed, .encode, .score and .classify: what the worker computes, and errors for the wrong model."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from kvasir import LLM, BeamSearchParams, PoolingParams
from kvasir.request.pool_params import PoolParams
from runtime.models.pooling.test_rerankers import with_reward_head
from runtime.models.pooling.tiny_encoders import CONFIGS, PooledModel, random_classifier, random_encoder
from runtime.models.tiny import MODELS, save

OPTIONS: dict[str, Any] = {"threads": 1}
WORDS = ["one", "two", "three", "four"]


def write_tokenizer(path: Path, *more: str) -> None:
    words = [*WORDS, *more]
    vocabulary = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3} | {word: 5 + i for i, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.save(str(path / "tokenizer.json"))


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, PooledModel]]:
    path = tmp_path_factory.mktemp("bert")
    random_encoder(CONFIGS["bert"]()).save_pretrained(path)
    write_tokenizer(path)
    with LLM(str(path), max_num_batched_tokens=64, **OPTIONS) as llm:
        yield llm, PooledModel(path)


def test_embed_returns_the_vectors_in_order(embedder: tuple[LLM, PooledModel]) -> None:
    llm, model = embedder
    prompts: list[Any] = ["one two", [7, 8], {"prompt": "four"}, *["three " * count for count in range(1, 60)]]
    outputs = llm.embed(prompts, use_tqdm=False)
    assert outputs[0].prompt_token_ids == [1, 5, 6, 2]
    for output in outputs:
        (expected,) = model.vectors([output.prompt_token_ids])
        np.testing.assert_allclose(output.outputs.embedding, expected, atol=1e-5)
    raw = llm.encode("one", PoolingParams(normalize=False), pooling_task="embed")[0]
    (expected,) = model.vectors([[1, 5, 2]], PoolParams(normalize=False))
    np.testing.assert_allclose(raw.outputs.data, expected, atol=1e-5)


def test_score_is_the_cosine_of_two_vectors(embedder: tuple[LLM, PooledModel]) -> None:
    llm, model = embedder
    outputs = llm.score("one", ["two", "one"])
    one, two = model.vectors([[1, 5, 2], [1, 6, 2]])
    assert [output.outputs.score for output in outputs] == pytest.approx([float(one @ two), 1.0], abs=1e-5)


def test_calls_of_another_kind_are_refused(embedder: tuple[LLM, PooledModel]) -> None:
    llm, _ = embedder
    calls: list[Callable[[], object]] = [
        lambda: llm.generate("one"),
        lambda: llm.chat([{"role": "user", "content": "one"}]),
        lambda: llm.beam_search("one", BeamSearchParams(beam_width=2, max_tokens=1)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="makes vectors or scores: use embed"):
            call()
    with pytest.raises(ValueError, match="task classify, and this one is for embed"):
        llm.classify("one")
    with pytest.raises(ValueError, match="maximum context length is 64"):
        llm.embed("one " * 70)
    with pytest.raises(ValueError, match="leave it out"):
        llm.embed("one", pooling_params=PoolingParams(dimensions=4))


def test_cross_encoder_scores_pairs_with_token_types(tmp_path: Path) -> None:
    config = CONFIGS["bert"]()
    config.num_labels = 1
    random_classifier(config).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    model = PooledModel(tmp_path)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        [found] = llm.score("one two", "three")
        [probability] = llm.classify("one two")
    (expected,) = model.vectors([[1, 5, 6, 2, 7, 2]], PoolParams(second_text=4))
    assert found.outputs.score == pytest.approx(float(expected[0]), abs=1e-5)
    assert probability.outputs.num_classes == 1


def test_a_decoder_embeds_with_the_option_of_vllm() -> None:
    with LLM("demo://", runner="pooling", max_model_len=512, **OPTIONS) as llm:
        [output] = llm.embed("Kvasir is", use_tqdm=False)
    assert np.linalg.norm(output.outputs.embedding) == pytest.approx(1.0, abs=1e-5)


def test_reward_model_scores_each_token_of_a_prompt(tmp_path: Path) -> None:
    with_reward_head(tmp_path, "Qwen2ForRewardModel", 1)
    write_tokenizer(tmp_path)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        [output] = llm.encode("one two three", pooling_task="token_classify")
        with pytest.raises(ValueError, match="use encode"):
            llm.classify("one")
        with pytest.raises(ValueError, match="scores each token"):
            llm.score("one", "two")
    (expected,) = PooledModel(tmp_path).vectors([output.prompt_token_ids])
    np.testing.assert_allclose(output.outputs.data[:, 0], expected, atol=1e-5)


def test_reranker_scores_pairs_in_its_template(tmp_path: Path) -> None:
    reference = MODELS["qwen3"]()
    save(reference, tmp_path)
    more = ("no", "yes", "Query", "Document")
    write_tokenizer(tmp_path, *more)
    overrides = {
        "architectures": ["Qwen3ForSequenceClassification"],
        "classifier_from_token": ["no", "yes"],
        "is_original_qwen3_reranker": True,
    }
    with LLM(str(tmp_path), hf_overrides=overrides, **OPTIONS) as llm:
        [found] = llm.score("one", "two")
    tokens = found.prompt_token_ids
    ids = {word: 5 + place for place, word in enumerate([*WORDS, *more])}
    own = [token for token in tokens if token in ids.values()]
    # The system message has all four words.
    assert own[-4:] == [ids[word] for word in ("Query", "one", "Document", "two")]
    with torch.no_grad():
        logits = reference(torch.tensor([tokens])).logits[0, -1, [9, 10]]
    assert found.outputs.score == pytest.approx(float(torch.softmax(logits, -1)[1]), abs=1e-5)
