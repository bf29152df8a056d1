"""Settings of LoRA adapters, and the engines that take none."""

from typing import Any

import pytest

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.hardware.device_facts import DeviceFacts
from kvasir.config.lora_settings import LoRAConfig
from kvasir.config.nodes import NodesConfig
from kvasir.config.options import ConfigError
from kvasir.config.resolve import ModelFacts, ResolvedEngine, resolve_engine
from kvasir.config.settings import EngineConfig, ModelConfig

CPU = DeviceFacts(kind="cpu", name="a CPU", cores=4, memory_limit=8 * 2**30, fast_bfloat16=True)


def resolve(lora: LoRAConfig, pools: bool = False, **parts: Any) -> ResolvedEngine:
    facts = ModelFacts(dtype="bfloat16", max_model_len=64, width=64, pools=pools)
    return resolve_engine(EngineConfig(ModelConfig("demo://"), lora=lora, **parts), facts, CPU)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"pools": True}, "vectors or scores"),
        ({"nodes": NodesConfig(nnodes=2)}, "--nnodes 2"),
        ({"executor": ExecutorConfig(distributed_executor_backend="ray")}, "--distributed-executor-backend ray"),
    ],
)
def test_engines_that_take_no_adapters_are_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"--enable-lora is not supported for .*{named}"):
        resolve(LoRAConfig(enable_lora=True), **changes)
    assert resolve(LoRAConfig(), **changes).lora is None


def test_memory_holds_the_adapters_of_a_step_at_least() -> None:
    resolved = resolve(LoRAConfig(enable_lora=True, max_loras=50)).lora
    assert resolved is not None
    assert resolved.num_in_memory == 50
    with pytest.raises(ConfigError, match="--max-cpu-loras 3 is below --max-loras 4"):
        LoRAConfig(max_cpu_loras=3)
