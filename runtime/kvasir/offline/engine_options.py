"""The options of `LLM`: those of `kvasir engine`, as keyword arguments with underscores."""

from collections.abc import Mapping
from typing import Any, Final

from kvasir.config.advice import for_option
from kvasir.config.options import ConfigError, flag_of, from_values, names_of
from kvasir.config.settings import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ExecutorConfig,
    ModelConfig,
    SchedulerConfig,
)
from kvasir.config.vllm.arguments import advice_for_options

_SECTIONS: Final = (DeviceConfig, CacheConfig, SchedulerConfig, ExecutorConfig)
_OF_MODEL: Final = tuple(name for name in names_of(ModelConfig) if name != "served_model_name")
_NAMES: Final = (*_OF_MODEL, *(name for section in _SECTIONS for name in names_of(section)))


def engine_config(model: str, options: Mapping[str, Any]) -> EngineConfig:
    """Return the settings of an engine of this model. Raises ConfigError for an option that cannot be used."""
    for name in options:
        if name not in _NAMES:
            flag = flag_of(name)
            advice = for_option(flag, [flag_of(known) for known in _NAMES], advice_for_options())
            raise ConfigError(f"LLM has no option {name}{advice}")
    return EngineConfig(
        model=from_values(ModelConfig, options, source=model),
        device=from_values(DeviceConfig, options),
        cache=from_values(CacheConfig, options),
        scheduler=from_values(SchedulerConfig, options),
        executor=from_values(ExecutorConfig, options),
    )
