"""What a model is served for, by its architecture and by the files of sentence-transformers."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvasir.hub.hub_errors import HubError
from kvasir.hub.model_info import ModelFiles, ModelInfo, load_model_info

CONFIG = {"max_position_embeddings": 514, "vocab_size": 300, "hidden_size": 32}


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def model(path: Path, architecture: str, task: str = "auto", **config: Any) -> ModelInfo:
    write(path / "config.json", {**CONFIG, "architectures": [architecture], **config})
    (path / "tokenizer.json").write_text("{}")
    return load_model_info(path, ModelFiles(task=task))


def write_modules(path: Path, *kinds: str) -> None:
    folders = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense", "Normalize": "3_Normalize"}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": folders.get(kind, kind)} for kind in kinds]
    write(path / "modules.json", modules)
    write(path / "1_Pooling/config.json", {"word_embedding_dimension": 32, "pooling_mode_lasttoken": True})
    tanh = "torch.nn.modules.activation.Tanh"
    write(path / "2_Dense/config.json", {"in_features": 32, "out_features": 8, "activation_function": tanh})


@pytest.mark.parametrize(
    ("architecture", "task", "expected"),
    [
        ("Qwen3ForCausalLM", "auto", None),
        ("Qwen3ForCausalLM", "embed", "embed"),
        ("GPT2LMHeadModel", "auto", None),
        ("GPT2LMHeadModel", "pool", "embed"),
        ("Qwen3ForSequenceClassification", "auto", "classify"),
        ("Qwen3ForSequenceClassification", "pool", "classify"),
        ("BertModel", "auto", "embed"),
        ("BertForMaskedLM", "auto", "embed"),
        ("BertModel", "generate", None),
        ("MistralModel", "auto", "embed"),
    ],
)
def test_task_follows_the_architecture(architecture: str, task: str, expected: str | None, tmp_path: Path) -> None:
    pooling = model(tmp_path, architecture, task).pooling
    assert (pooling.task if pooling else None) == expected


def test_files_of_sentence_transformers_are_read(tmp_path: Path) -> None:
    write_modules(tmp_path, "Transformer", "Pooling", "Dense", "Normalize")
    write(tmp_path / "sentence_bert_config.json", {"max_seq_length": 128, "do_lower_case": True})
    prompts = {"prompts": {"query": "Query:", "document": ""}, "default_prompt_name": None}
    write(tmp_path / "config_sentence_transformers.json", {**prompts, "similarity_fn_name": "dot"})
    info = model(tmp_path, "Qwen3ForCausalLM", matryoshka_dimensions=[8, 16])
    pooling = info.pooling
    assert pooling is not None
    assert (pooling.task, pooling.modes, pooling.normalise) == ("embed", ("lasttoken",), True)
    assert [(dense.outputs, dense.activation) for dense in pooling.dense] == [(8, "Tanh")]
    assert (info.max_model_len, pooling.lowercase, pooling.dot_similarity) == (128, True, True)
    assert (pooling.prompts, pooling.cuts) == ({"query": "Query:", "document": ""}, (8, 16))


def test_a_missing_normalize_step_leaves_vectors_as_they_are(tmp_path: Path) -> None:
    write_modules(tmp_path, "Transformer", "Pooling")
    pooling = model(tmp_path, "BertModel").pooling
    assert pooling is not None
    assert not pooling.normalise


@pytest.mark.parametrize(
    ("modules", "pooling", "reason"),
    [
        (["Transformer", "LSTM"], {}, "LSTM is not supported"),
        (["Transformer", "Pooling"], {"pooling_mode": "first_and_last"}, "sets the pooling to"),
        (["Transformer", "Pooling"], {"pooling_mode": "mean", "include_prompt": False}, "include_prompt false"),
    ],
)
def test_other_steps_are_refused(modules: list[str], pooling: dict[str, Any], reason: str, tmp_path: Path) -> None:
    write_modules(tmp_path, *modules)
    write(tmp_path / "1_Pooling/config.json", pooling)
    with pytest.raises(HubError, match=reason):
        model(tmp_path, "BertModel")


def test_positions_before_the_first_token_are_not_served(tmp_path: Path) -> None:
    assert model(tmp_path, "RobertaModel", model_type="roberta", pad_token_id=1).max_model_len == 512
    assert model(tmp_path, "BertModel", model_type="bert", pad_token_id=0).max_model_len == 514


def test_positions_without_training_are_not_served(tmp_path: Path) -> None:
    lengths: dict[str, Any] = {"n_positions": 8192, "max_position_embeddings": None, "max_trained_positions": 2048}
    assert model(tmp_path, "NomicBertModel", model_type="nomic_bert", **lengths).max_model_len == 2048


@pytest.mark.parametrize(
    ("config", "activation"),
    [
        ({"id2label": {"0": "LABEL_0"}}, "sigmoid"),
        ({"id2label": {"0": "no", "1": "yes"}}, "softmax"),
        ({"id2label": {"0": "a", "1": "b"}, "problem_type": "multi_label_classification"}, "sigmoid"),
        ({"id2label": {"0": "a"}, "sbert_ce_default_activation_function": "torch.nn.Identity"}, "identity"),
    ],
)
def test_scores_have_the_activation_of_the_config(config: dict[str, Any], activation: str, tmp_path: Path) -> None:
    pooling = model(tmp_path, "BertForSequenceClassification", **config).pooling
    assert pooling is not None
    assert (pooling.activation, pooling.labels) == (activation, tuple(config["id2label"].values()))


def test_label_without_a_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HubError, match="id2label"):
        model(tmp_path, "BertForSequenceClassification", id2label={"good": 0})


def test_default_prompt_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_modules(tmp_path, "Transformer", "Pooling")
    write(
        tmp_path / "config_sentence_transformers.json", {"prompts": {"query": "Q:"}, "default_prompt_name": "query"}
    )
    model(tmp_path, "BertModel")
    assert "prompt_name" in caplog.text
