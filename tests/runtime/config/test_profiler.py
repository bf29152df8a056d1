import pytest

from kvasir.config.options import ConfigError
from kvasir.config.profiler import MAX_PROFILED_STEPS, ProfilerConfig, read_profiler_config
from kvasir.config.settings import DeviceConfig


def test_the_fields_are_those_of_vllm() -> None:
    assert read_profiler_config("{}") is None
    text = '{"profiler": "torch", "torch_profiler_dir": "/tmp/traces", "torch_profiler_with_stack": true}'
    assert read_profiler_config(text) == ProfilerConfig("torch", "/tmp/traces", torch_profiler_with_stack=True)
    assert ProfilerConfig("torch", "/tmp").max_iterations == MAX_PROFILED_STEPS


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"profiler": "torch"}', "torch_profiler_dir"),
        ('{"torch_profiler_dir": "/tmp"}', "profiler"),
        ('{"profiler": "cuda", "torch_profiler_dir": "/tmp"}', "'cuda' is not supported: use \"torch\""),
        ('{"profiler": "torch", "torch_profiler_dir": "traces"}', "not an absolute path"),
        ('{"profiler": "torch", "torch_profiler_dir": "/tmp", "delay_iterations": 3}', "delay_iterations"),
        ('{"profiler": "torch", "torch_profiler_dir": "/tmp", "max_iterations": 0}', "max_iterations"),
    ],
)
def test_other_values_are_refused_when_the_options_are_read(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"--profiler-config: .*{problem}"):
        DeviceConfig(profiler_config=text)
