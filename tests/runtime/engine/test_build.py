"""The context is fitted to the KV cache, whose blocks several groups of layers may share."""

import logging
from dataclasses import replace

import pytest

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.hardware.device_facts import DeviceFacts
from kvasir.config.options import ConfigError
from kvasir.config.settings import EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig
from kvasir.config.speculation import Speculation
from kvasir.engine import build
from kvasir.engine.build import fit_context
from kvasir.hub.pooling.pooling_info import EMBED, PoolingInfo
from kvasir.layers.kv import KVCacheConfig, KVGroup, PerRequest
from runtime.client.trained import model_info
from runtime.engine.fake_executor import FakeExecutor
from runtime.engine.kv_configs import kv_config, kv_groups
from runtime.worker.driver import engine_settings

SETTINGS = engine_settings(block_size=16, max_model_len=4096, max_num_batched_tokens=64)


def test_a_context_that_fits_stays() -> None:
    assert fit_context(SETTINGS, kv_config(256, 16), asked=None) is SETTINGS
    assert fit_context(SETTINGS, kv_config(9, 16, (32,)), asked=4096) is SETTINGS


def test_a_default_context_is_limited_to_the_cache() -> None:
    assert fit_context(SETTINGS, kv_config(10, 16), asked=None).max_model_len == 161
    assert fit_context(SETTINGS, kv_config(20, 16, (None, 32)), asked=None).max_model_len == 13 * 16 + 1


def test_a_requested_context_that_does_not_fit_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"its 10 blocks of 16 tokens hold 161 tokens; lower it or give the cache"
    ):
        fit_context(SETTINGS, kv_config(10, 16), asked=4096)
    with pytest.raises(
        ConfigError, match=r"its 20 blocks of 16 tokens, shared by 2 groups of layers, hold 209 tok"
    ):
        fit_context(SETTINGS, kv_config(20, 16, (None, 32)), asked=4096)


def test_a_cache_with_fewer_blocks_than_groups_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"has fewer blocks \(1\) than the model has groups of layers \(2\)"):
        fit_context(SETTINGS, kv_config(1, 16, (None, 32)), asked=None)


@pytest.mark.parametrize(("device", "lines"), [("cuda", 1), ("cpu", 0)])
def test_a_split_over_gpus_is_logged_as_untested(
    device: str, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    facts = DeviceFacts(device, "a device", cores=4, memory_limit=2**36, fast_bfloat16=True, gpus=2)
    monkeypatch.setattr(build, "device_facts_of_workers", lambda config: facts)
    monkeypatch.setattr(build, "check_early", lambda model, settings: None)
    config = EngineConfig(ModelConfig("demo://"), executor=ExecutorConfig(tensor_parallel_size=2))
    build.resolve_settings(config, model_info())
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text.startswith("a split over several GPUs has not been tested") for text in warnings] == [True] * lines


OWN_CACHE = KVCacheConfig((KVGroup(PerRequest(kv_groups(16)[0].spec.block, 64), (0,)),), 9)


NGRAM = SchedulerConfig(speculative_config='{"method": "ngram"}')


@pytest.mark.parametrize(
    ("executor", "reason"),
    [
        (ExecutorConfig(pipeline_parallel_size=2), "the stages of a pipeline"),
        (ExecutorConfig(enable_expert_parallel=True), "engines that share experts"),
        (ExecutorConfig(), ""),
    ],
)
def test_one_line_says_why_settings_have_no_drafts(
    executor: ExecutorConfig, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build, "check_early", lambda model, settings: None)
    ranks = ParallelConfig(data_parallel_size=2)
    config = EngineConfig(ModelConfig("demo://"), scheduler=NGRAM, executor=executor, parallel=ranks)
    settings = build.resolve_settings(config, model_info())
    assert (settings.speculation is None) == bool(reason)
    lines = [line for line in caplog.messages if line.startswith("--speculative-config has no effect")]
    assert [reason in line for line in lines] == [True] * bool(reason)


@pytest.mark.parametrize(
    ("cache", "reason"), [(OWN_CACHE, "a cache of its own"), (kv_config(9, 16, (None, 32)), "")]
)
def test_one_line_says_why_a_cache_has_no_drafts(
    cache: KVCacheConfig, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    speculation = Speculation("ngram", 5, max_step_rows=16, prompt_lookup_min=5, prompt_lookup_max=5)
    settings = replace(SETTINGS, max_model_len=32, max_num_seqs=4, speculation=speculation)
    core = build.build_core(settings, model_info(), cache, FakeExecutor())
    core.close()
    assert (core.scheduler.draft_stats is None) == bool(reason)
    assert [reason in record.getMessage() for record in caplog.records] == [True] * bool(reason)


def test_a_line_says_that_a_model_that_pools_has_no_drafts(caplog: pytest.LogCaptureFixture) -> None:
    model = replace(model_info(), pooling=PoolingInfo(EMBED))
    settings = build.resolve_settings(EngineConfig(ModelConfig("demo://"), scheduler=NGRAM), model)
    core = build.build_core(settings, model, kv_config(9, 16), FakeExecutor())
    core.close()
    assert core.scheduler.draft_stats is None
    assert any(
        "--speculative-config has no effect: the model generates no text" in line for line in caplog.messages
    )
