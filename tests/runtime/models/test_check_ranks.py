from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import OlmoConfig, PreTrainedModel, Qwen3MoeConfig

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.options import ConfigError
from kvasir.hub.model_info import ModelInfo, load_model_info
from kvasir.models.check_ranks import check_ranks
from kvasir.models.model_load_error import ModelLoadError
from kvasir.worker.split_refusal import check_early
from runtime.models.tiny import MODELS, MOE, decoder, gpt2, llama, save
from runtime.worker.driver import engine_settings

CONTEXT = 64


@pytest.mark.parametrize("name", list(MODELS))
def test_models_of_four_heads_are_accepted(name: str, tmp_path: Path) -> None:
    info = load_model_info(save(MODELS[name](), tmp_path))
    for weights in tmp_path.glob("*.safetensors"):
        weights.unlink()
    check_ranks(info, CONTEXT, 2, expert_parallel="moe" in name)


@pytest.mark.parametrize(
    ("build", "ranks", "experts", "reason"),
    [
        (llama, 3, False, r"3 does not divide num_attention_heads = 4 of config.json: choose 1 or 2 or 4$"),
        (gpt2, 8, False, r"8 does not divide n_head = 4 of config.json: choose 1 or 2 or 4$"),
        (MODELS["qwen3-moe"], 5, True, r"5 does not divide num_attention_heads = 4"),
        (llama, 2, True, r"--enable-expert-parallel: LlamaForCausalLM has no experts here: leave it out"),
        (lambda: decoder(OlmoConfig), 2, False, r"OlmoForCausalLM .* use --tensor-parallel-size 1$"),
    ],
)
def test_a_split_is_refused_with_the_number_and_a_choice(
    build: Callable[[], PreTrainedModel], ranks: int, experts: bool, reason: str, tmp_path: Path
) -> None:
    info = load_model_info(save(build(), tmp_path))
    with pytest.raises(ConfigError, match=reason):
        check_ranks(info, CONTEXT, ranks, experts)


@pytest.mark.parametrize("name", list(MODELS))
def test_models_of_three_layers_are_accepted_in_stages(name: str, tmp_path: Path) -> None:
    info = load_model_info(save(MODELS[name](), tmp_path))
    for ranks in (1, 2):
        check_ranks(info, CONTEXT, ranks, expert_parallel="moe" in name, stages=3)


def test_experts_in_the_last_stage_alone_can_be_split(tmp_path: Path) -> None:
    info = load_model_info(save(decoder(Qwen3MoeConfig, **MOE, mlp_only_layers=[0, 1]), tmp_path))
    check_ranks(info, CONTEXT, 2, expert_parallel=True, stages=2)
    check_ranks(info, CONTEXT, 2, expert_parallel=True, stages=3)


@pytest.mark.parametrize(
    ("build", "ranks", "stages", "reason"),
    [
        (llama, 1, 4, r"--pipeline-parallel-size 4 is more than num_hidden_layers = 3 .*: choose at most 3$"),
        (gpt2, 2, 5, r"--pipeline-parallel-size 5 is more than n_layer = 3 of config.json: choose at most 3$"),
        (llama, 3, 2, r"3 does not divide num_attention_heads = 4"),
        (lambda: decoder(OlmoConfig), 1, 2, r"OlmoForCausalLM .* use --pipeline-parallel-size 1$"),
        (lambda: decoder(OlmoConfig), 2, 2, r"--tensor-parallel-size 1 and --pipeline-parallel-size 1$"),
    ],
)
def test_stages_are_refused_with_the_number_and_a_choice(
    build: Callable[[], PreTrainedModel], ranks: int, stages: int, reason: str, tmp_path: Path
) -> None:
    info = load_model_info(save(build(), tmp_path))
    with pytest.raises(ConfigError, match=reason):
        check_ranks(info, CONTEXT, ranks, expert_parallel=False, stages=stages)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_split_is_refused_before_weights_are_downloaded(ranks: int, tmp_path: Path) -> None:
    info = load_model_info(save(llama(), tmp_path))
    settings = engine_settings(executor=ExecutorConfig(tensor_parallel_size=ranks))
    check_early(info, settings)  # a worker checks, because the weights are here
    for weights in tmp_path.glob("*.safetensors"):
        weights.unlink()
    if ranks == 2:
        check_early(info, settings)
    else:
        with pytest.raises(ConfigError, match=r"^--tensor-parallel-size 3 does not divide num_attention_heads"):
            check_early(info, settings)


def test_a_split_is_refused_before_many_workers_are_started(tmp_path: Path) -> None:
    info = load_model_info(save(llama(), tmp_path))
    settings = engine_settings(executor=ExecutorConfig(pipeline_parallel_size=99))
    with pytest.raises(ConfigError, match=r"^--pipeline-parallel-size 99 is more than num_hidden_layers = 3"):
        check_early(info, settings)


@pytest.fixture(scope="module")
def any_llama(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return load_model_info(save(llama(), tmp_path_factory.mktemp("llama")))


@given(
    kv_heads=st.integers(1, 6),
    group=st.integers(1, 6),
    intermediate=st.integers(1, 48),
    ranks=st.integers(2, 12),
)
def test_a_refused_split_offers_all_sizes_that_are_accepted(
    any_llama: ModelInfo, kv_heads: int, group: int, intermediate: int, ranks: int
) -> None:
    heads = kv_heads * group
    shape = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 4}
    info = replace(any_llama, config=any_llama.config | shape | {"intermediate_size": intermediate})

    def allowed(size: int) -> bool:
        whole = heads % size == 0 and intermediate % size == 0
        return whole and (kv_heads % size == 0 or size % kv_heads == 0)

    if allowed(ranks):
        check_ranks(info, CONTEXT, ranks, expert_parallel=False)
        return
    with pytest.raises(ModelLoadError) as raised:
        check_ranks(info, CONTEXT, ranks, expert_parallel=False)
    offered = [int(size) for size in str(raised.value).rpartition("choose ")[2].split(" or ")]
    assert offered == [size for size in range(1, 49) if allowed(size)]
