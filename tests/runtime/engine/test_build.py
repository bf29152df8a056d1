"""The context is fitted to the KV cache, whose blocks several groups of layers may share."""

import pytest

from kvasir.config.options import ConfigError
from kvasir.engine.build import fit_context
from runtime.engine.kv_configs import kv_config
from runtime.worker.driver import engine_settings

SETTINGS = engine_settings(block_size=16, max_model_len=4096, max_num_batched_tokens=64)


def test_a_context_that_fits_stays() -> None:
    assert fit_context(SETTINGS, kv_config(256, 16), asked=None) is SETTINGS
    assert fit_context(SETTINGS, kv_config(9, 16, (32,)), asked=4096) is SETTINGS


def test_a_context_that_was_not_asked_for_is_limited_to_the_cache() -> None:
    assert fit_context(SETTINGS, kv_config(10, 16), asked=None).max_model_len == 161
    assert fit_context(SETTINGS, kv_config(20, 16, (None, 32)), asked=None).max_model_len == 13 * 16 + 1


def test_a_context_that_was_asked_for_and_does_not_fit_is_refused() -> None:
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
