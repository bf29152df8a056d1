import dataclasses

import pytest

from kvasir.config.cuda_graphs import default_sizes, read_compilation_config
from kvasir.config.hardware.device_facts import DeviceFacts
from kvasir.config.options import ConfigError
from kvasir.config.resolve import ModelFacts, resolve_engine, without_effect
from kvasir.config.settings import DeviceConfig, EngineConfig, ModelConfig, SchedulerConfig

GPU = DeviceFacts("cuda", "a GPU", cores=8, memory_limit=2**36, fast_bfloat16=True)
CPU = dataclasses.replace(GPU, kind="cpu")
MODEL = ModelFacts("bfloat16", 4096, 4096)


def config(compilation: str = "{}", *, eager: bool = False, rows: int | None = None) -> EngineConfig:
    device = DeviceConfig(compilation_config=compilation, enforce_eager=eager)
    return EngineConfig(ModelConfig("m"), device=device, scheduler=SchedulerConfig(max_num_seqs=rows))


def sizes(config: EngineConfig, device: DeviceFacts = GPU) -> tuple[int, ...]:
    return resolve_engine(config, MODEL, device).graph_sizes


def test_the_smallest_and_largest_graph_are_captured() -> None:
    assert default_sizes(1) == (1,)
    assert default_sizes(3) == (1, 2, 3)
    assert default_sizes(256)[-2:] == (240, 256)
    assert default_sizes(512)[:5] == (1, 2, 4, 8, 16)
    assert default_sizes(512)[-1] == 512
    assert list(default_sizes(300)) == sorted(set(default_sizes(300)))


def test_a_gpu_captures_sizes_up_to_the_rows_of_a_step() -> None:
    assert sizes(config()) == default_sizes(256)
    assert sizes(config(rows=3)) == (1, 2, 3)
    assert sizes(config(rows=4000))[-1] == 512
    assert sizes(config('{"max_cudagraph_capture_size": 8}')) == (1, 2, 4, 8)
    assert sizes(config('{"cudagraph_capture_sizes": [64, 1, 999, 64]}')) == (1, 64, 256)
    assert sizes(config('{"cudagraph_capture_sizes": [64, 1], "max_cudagraph_capture_size": 8}')) == (1, 8)
    assert sizes(config('{"cudagraph_mode": null}')) == default_sizes(256)


def test_graphs_can_be_left_out() -> None:
    assert sizes(config(eager=True)) == ()
    assert sizes(config('{"cudagraph_mode": "NONE"}')) == ()
    assert sizes(config('{"use_cudagraph": false}')) == ()
    assert sizes(config(), CPU) == ()


@pytest.mark.parametrize("mode", ["FULL", "PIECEWISE", "FULL_AND_PIECEWISE"])
def test_other_modes_of_vllm_capture_decodes(mode: str) -> None:
    assert read_compilation_config(f'{{"cudagraph_mode": "{mode}"}}').sizes(2) == (1, 2)


@pytest.mark.parametrize(
    "text",
    [
        '{"cudagraph_mode": "ALL"}',
        '{"cudagraph_capture_size": [4]}',
        '{"cudagraph_capture_sizes": [0]}',
        '{"max_cudagraph_capture_size": "8"}',
    ],
)
def test_other_values_are_refused_when_the_options_are_read(text: str) -> None:
    with pytest.raises(ConfigError, match="--compilation-config: "):
        DeviceConfig(compilation_config=text)


def test_options_and_fields_without_effect_are_named() -> None:
    assert without_effect(config(), MODEL, GPU) == []
    assert without_effect(config(), MODEL, CPU) == []
    [sentence] = without_effect(config('{"level": 3, "mode": 3}'), MODEL, GPU)
    assert sentence.startswith("--compilation-config: level, mode have no effect")
    [sentence] = without_effect(config(eager=True), MODEL, CPU)
    assert "have no effect on a CPU" in sentence
