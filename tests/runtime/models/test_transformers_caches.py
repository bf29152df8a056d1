import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from transformers import (
    BloomConfig,
    DeepseekV3Config,
    Lfm2Config,
    MambaConfig,
    PreTrainedModel,
    Qwen3NextConfig,
)

from kvasir.config.options import ConfigError
from kvasir.executor.in_process import InProcessExecutor
from kvasir.hub.model_info import load_model_info
from kvasir.models.transformers_code.transformers_caches import TransformersCaches
from kvasir.request.params import SamplingParams
from runtime.executor.split_engine import SplitEngine
from runtime.models.test_transformers_lm import expected, generates_alike, prompts
from runtime.models.tiny import decoder, save
from runtime.worker.driver import Driver, engine_settings

MLA = {
    "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 32,
    "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "num_key_value_heads": 4,
}  # fmt: skip
LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
}  # fmt: skip
MODELS: Mapping[str, Callable[[], PreTrainedModel]] = MappingProxyType(
    {
        "latent attention": lambda: decoder(DeepseekV3Config, **MLA),
        "linear attention": lambda: decoder(Qwen3NextConfig, **LINEAR),
        "convolutions": lambda: decoder(Lfm2Config, layer_types=["conv", "full_attention", "conv"]),
        "states alone": lambda: decoder(MambaConfig, state_size=4),
        "alibi": lambda: decoder(BloomConfig, n_head=4),
    }
)


@pytest.mark.parametrize("name", list(MODELS))
def test_tokens_are_those_of_generate(name: str, tmp_path: Path) -> None:
    driver = generates_alike(MODELS[name](), tmp_path)
    assert served(driver)._requests == {}, "ended requests keep no memory"


def test_chunks_start_again_where_states_cannot_continue(tmp_path: Path) -> None:
    """The test above gives its tokens."""
    driver = Driver.load(save(MODELS["states alone"](), tmp_path))
    assert not served(driver).continues
    other = Driver.load(save(MODELS["latent attention"](), tmp_path / "other"))
    assert served(other).continues


@pytest.mark.parametrize("ahead", [False, True])
def test_an_engine_shares_no_blocks_between_requests(ahead: bool, tmp_path: Path) -> None:
    """Blocks hold nothing here: a request that found its prompt in some would miss its context."""
    info = load_model_info(save(MODELS["latent attention"](), tmp_path))
    settings = engine_settings(async_scheduling=ahead, num_blocks=30, max_num_seqs=4)
    engine = SplitEngine(info, settings, InProcessExecutor(settings, info, launches=ahead))
    try:
        for name in "abcdef":
            engine.add(name, prompts()[3], SamplingParams(max_tokens=10, seed=0, temperature=0.0, ignore_eos=True))
        engine.run()
        assert {tuple(answer.tokens) for answer in engine.answers.values()} == {tuple(expected(tmp_path, 3))}
    finally:
        engine.close()


def test_states_of_all_requests_must_fit(tmp_path: Path) -> None:
    path = save(MODELS["linear attention"](), tmp_path)
    driver = Driver.load(path, kv_cache_memory_bytes=2**20, max_num_seqs=2)
    spec = driver.worker.kv_layout().groups[0].spec  # type: ignore[attr-defined]
    assert spec.request_bytes > 1000
    with pytest.raises(ConfigError, match="lower --max-num-seqs"):
        Driver.load(path, kv_cache_memory_bytes=100 * spec.request_bytes, max_num_seqs=100)


def test_a_log_line_says_what_it_costs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Driver.load(save(MODELS["alibi"](), tmp_path))
    assert "each request by itself" in caplog.text
    assert "because its attention cannot be replaced" in caplog.text


def served(driver: Driver) -> TransformersCaches:
    model = driver.worker._model  # type: ignore[attr-defined]
    assert isinstance(model, TransformersCaches)
    return model
