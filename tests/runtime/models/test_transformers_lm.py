import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    CwmConfig,
    FlexOlmoConfig,
    GPTBigCodeConfig,
    LlamaConfig,
    OlmoConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3MoeConfig,
)

from kvasir.hub.model_info import ModelFiles, load_model_info
from kvasir.layers.parameter import Placement
from kvasir.models import decoder as decoder_module
from kvasir.models.load_model import load_model
from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.transformers_code import transformers_lm
from runtime.models.tiny import FAMILIES, VOCAB, decoder, load_reference, save
from runtime.worker.driver import Driver, greedy

MODELS: Mapping[str, Callable[[], PreTrainedModel]] = MappingProxyType(
    {
        "olmo": lambda: decoder(OlmoConfig),
        "gpt-bigcode": lambda: decoder(GPTBigCodeConfig),
        "cwm": lambda: decoder(
            CwmConfig, sliding_window=20, layer_types=["full_attention", "sliding_attention", "sliding_attention"]
        ),
        "flex-olmo": lambda: decoder(FlexOlmoConfig, num_experts=4, num_experts_per_tok=2),
    }
)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(2, VOCAB, (length,), generator=generator).tolist() for length in (3, 40, 17, 29, 61)]


def generates_alike(model: Any, path: Path) -> Driver:
    driver = Driver.load(save(model, path))
    for index, prompt in enumerate(prompts()):
        driver.add(f"r{index}", prompt, greedy(10))
    for _ in range(7):
        driver.step(budget=24)
    driver.preempt("r0")
    outputs = driver.run(budget=24)
    for index, prompt in enumerate(prompts()):
        ids = torch.tensor([prompt])
        expected = model.generate(ids, max_new_tokens=10, min_new_tokens=10, do_sample=False, eos_token_id=None)
        assert outputs[f"r{index}"] == expected[0, len(prompt) :].tolist()
    return driver


@pytest.mark.parametrize("name", list(MODELS))
def test_tokens_are_those_of_generate(name: str, tmp_path: Path) -> None:
    generates_alike(MODELS[name](), tmp_path)


def test_fields_of_config_json_are_replaced(tmp_path: Path) -> None:
    path, placement = save(FAMILIES["granite"](), tmp_path), Placement(torch.device("cpu"), torch.float32)
    infos = (load_model_info(path), load_model_info(path, ModelFiles(overrides={"logits_scaling": 4.5})))
    own, other = (load_model(info, placement, 64, lambda done, total: None) for info in infos)
    states = torch.ones(2, own.hidden_size)
    torch.testing.assert_close(own.logits(states), other.logits(states) * 3)


def test_a_model_is_one_stage_of_all_layers(tmp_path: Path) -> None:
    path = save(decoder(OlmoConfig, num_hidden_layers=5, hidden_size=32), tmp_path)
    model = load_model(
        load_model_info(path), Placement(torch.device("cpu"), torch.float32), 64, lambda done, total: None
    )
    assert model.stage.layers == range(5)
    assert model.stage.first
    assert model.stage.last
    assert model.hidden_size == 32


def test_a_log_line_says_who_serves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Driver.load(save(MODELS["olmo"](), tmp_path))
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("kvasir")]
    assert "OlmoForCausalLM is served by transformers' own code" in line
    assert "slower" in line


def test_bfloat16_passes_the_check_against_the_reference(tmp_path: Path) -> None:
    driver = Driver.load(save(MODELS["flex-olmo"]().bfloat16(), tmp_path), dtype="bfloat16")
    driver.add("r", prompts()[1], greedy(6))
    assert len(driver.run()["r"]) == 6


def test_code_that_mixes_a_flat_batch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_positions(base: Any, token_ids: torch.Tensor, positions: torch.Tensor, step: Any) -> torch.Tensor:
        return forward(base, token_ids, torch.arange(len(positions)), step)

    forward = transformers_lm._forward
    monkeypatch.setattr(transformers_lm, "_forward", without_positions)
    assert "computes other logits" in refusal(MODELS["olmo"](), tmp_path)


def test_a_window_that_the_code_does_not_compute_is_refused(tmp_path: Path) -> None:
    said = refusal(MODELS["olmo"](), tmp_path, sliding_window=20)
    assert "do not pass their sliding_window to attention" in said
    assert "computes other states token by token than for a whole sequence" in said


def test_a_window_that_is_switched_off_is_no_reason_to_refuse(tmp_path: Path) -> None:
    path = save(MODELS["olmo"](), tmp_path)
    edit(path, sliding_window=20, use_sliding_window=False)
    assert Driver.load(path)


def edit(path: Path, **config: Any) -> None:
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))


def tokens(path: Path, **overrides: Any) -> list[int]:
    """Greedy tokens of the model that load_model chooses."""
    driver = Driver.load(path, files=ModelFiles(overrides=overrides))
    driver.add("r", prompts()[0], greedy(10))
    return driver.run()["r"]


def expected(path: Path, index: int = 0) -> list[int]:
    model: Any = load_reference(path, torch.float32)
    prompt = torch.tensor([prompts()[index]])
    output = model.generate(prompt, max_new_tokens=10, min_new_tokens=10, do_sample=False, eos_token_id=None)
    return output[0, prompt.shape[1] :].tolist()  # type: ignore[no-any-return]


LONG_ROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("overrides", "written"),
    [
        ({"rope_theta": 50.0}, {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
        ({"rope_scaling": YARN}, {"rope_parameters": YARN | {"rope_theta": 10000.0}}),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 50.0},
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0}},
        ),
    ],
)
@pytest.mark.parametrize("config", [OlmoConfig, LlamaConfig])
def test_rope_overrides_change_answers_like_the_file(
    config: type[PreTrainedConfig], overrides: dict[str, Any], written: dict[str, Any], tmp_path: Path
) -> None:
    path = save(decoder(config), tmp_path)
    plain, changed = tokens(path), tokens(path, **overrides)
    edit(path, **written)
    assert changed == expected(path)
    assert changed != plain


def test_a_rope_override_without_effect_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = save(MODELS["gpt-bigcode"](), tmp_path)
    with caplog.at_level(logging.WARNING):
        assert tokens(path, rope_theta=50.0) == expected(path)
    assert "GPTBigCodeForCausalLM has no rope_parameters, so they change nothing" in caplog.text


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (lambda: decoder(LlamaConfig, hidden_act="relu6"), {}),
        (
            lambda: decoder(Qwen3MoeConfig, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
            {"use_sliding_window": True, "sliding_window": 4},
        ),
    ],
)
def test_settings_that_only_transformers_computes_are_served(
    model: Callable[[], PreTrainedModel], changes: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save(model(), tmp_path)
    edit(path, **changes)
    with caplog.at_level(logging.WARNING):
        assert tokens(path) == expected(path)
    assert "Kvasir's own code for" in caplog.text


def test_tensors_that_only_transformers_reads_are_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder_module, "_STACKED", re.compile("unknown"))
    model = decoder(Qwen3MoeConfig, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
    model.save_pretrained(tmp_path, save_original_format=False)  # the experts as one tensor
    with caplog.at_level(logging.WARNING):
        assert tokens(tmp_path) == expected(tmp_path)
    assert "Kvasir's own code for Qwen3MoeForCausalLM was not used: tensor 'model.layers.0.mlp.exp" in caplog.text


def test_tensors_that_neither_code_reads_name_both_reasons(tmp_path: Path) -> None:
    save(decoder(LlamaConfig), tmp_path)
    file = tmp_path / "model.safetensors"
    save_file(load_file(file) | {"extra": torch.zeros(2)}, file, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"'extra'.* has no place in this model.*unexpected_keys extra"):
        Driver.load(tmp_path)


def test_a_setting_that_neither_code_computes_names_both_reasons(tmp_path: Path) -> None:
    said = refusal(decoder(LlamaConfig), tmp_path, rope_scaling={"rope_type": "ntk", "factor": 2.0})
    assert "sets 'rope_type' to 'ntk'; supported is one of default" in said
    assert "transformers cannot load this LlamaForCausalLM: 'ntk'" in said


def refusal(model: PreTrainedModel, path: Path, **config: Any) -> str:
    save(model, path)
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    with pytest.raises(ModelLoadError) as refused:
        Driver.load(path)
    return str(refused.value)


def test_angles_that_follow_the_longest_request_are_refused(tmp_path: Path) -> None:
    assert "rope_type longrope" in refusal(decoder(OlmoConfig, rope_parameters=LONG_ROPE), tmp_path)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"architectures": ["NobodysForCausalLM"]}, "code from the model's own repository is never run"),
        ({"architectures": ["BertModel"]}, "not a model that predicts the next token"),
        ({"layer_types": ["full_attention", "linear_attention", "full_attention"]}, "layers of linear_attention"),
        ({"hidden_act": "mish-mash"}, "transformers cannot load this"),
        ({"num_hidden_layers": 4}, "missing_keys model.layers.3"),
        ({"num_hidden_layers": 2}, "unexpected_keys model.layers.2"),
    ],
)
def test_a_config_that_transformers_cannot_serve_is_refused(
    config: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    assert reason in refusal(MODELS["olmo"](), tmp_path, **config)


def test_architectures_of_our_own_do_without_transformers() -> None:
    """Its import takes longer than loading a small model."""
    code = "import sys; import kvasir.worker.worker; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
