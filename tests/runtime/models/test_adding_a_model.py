"""The example of docs/design/adding-a-model.md is a model that computes, and that can be split."""

import re
from pathlib import Path
from types import MappingProxyType, ModuleType

import pytest
import torch
from transformers import PreTrainedModel, SeedOssConfig

from kvasir.hub.model_info import load_model_info
from kvasir.models import check_ranks, load_model, registry
from kvasir.models.model_load_error import ModelLoadError
from runtime.models.in_stages import assert_same_bits, computed_in_stages
from runtime.models.tiny import decoder, reference_logits, save
from runtime.parallel.thread_group import run_ranks
from runtime.worker.driver import Driver, greedy

PAGE = Path(__file__).resolve().parents[3] / "docs/design/adding-a-model.md"
PROMPT = list(range(5, 45))


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the page's module, as the page describes it."""
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]
    module = ModuleType("seed_oss")
    exec(compile(code, str(PAGE), "exec"), module.__dict__)
    extended = MappingProxyType(
        {**registry.ARCHITECTURES, "SeedOssForCausalLM": registry._decoder(module.read_config)}
    )
    for user in (load_model, check_ranks):
        monkeypatch.setattr(user, "ARCHITECTURES", extended)


def seed_oss() -> PreTrainedModel:
    return decoder(SeedOssConfig, head_dim=32, attention_out_bias=True)


def test_the_example_answers_as_transformers(tmp_path: Path) -> None:
    reference = seed_oss()
    driver = Driver.load(save(reference, tmp_path))
    driver.add("r", PROMPT, greedy(12))
    tokens = driver.run()["r"]
    assert tokens == reference_logits(reference, PROMPT, tokens).argmax(dim=1).tolist()


def test_the_example_rejects_keys_that_other_models_compute_with(tmp_path: Path) -> None:
    path = save(decoder(SeedOssConfig, head_dim=32, attn_logit_softcapping=2.0), tmp_path)
    with pytest.raises(ModelLoadError, match="attn_logit_softcapping"):
        Driver.load(path)


def test_the_example_is_split_over_ranks_and_stages(tmp_path: Path) -> None:
    path = save(seed_oss(), tmp_path)
    check_ranks.check_ranks(load_model_info(path), 64, 2, expert_parallel=False, stages=3)
    expected = computed_in_stages(path, 1)
    assert_same_bits(computed_in_stages(path, 3), expected)
    for found in run_ranks(2, lambda group: computed_in_stages(path, 1, group)):
        assert all(torch.allclose(one, other, atol=2e-4) for one, other in zip(found, expected, strict=True))
