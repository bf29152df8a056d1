import importlib.util
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import Gemma2Config, PreTrainedModel, Qwen3MoeConfig

from kvasir.config.lora_settings import LoRAConfig
from kvasir.layers.moe.experts import Experts
from kvasir.layers.step_memory import Array, DeviceMemory
from kvasir.request.params import SamplingParams
from kvasir.worker.launch.decode_graphs import CudaRecorder
from runtime.hub.adapters.adapter_files import write_adapter
from runtime.models.tiny import MOE, decoder, llama, save
from runtime.worker.cpu_graphs import capture_on_cpu
from runtime.worker.driver import Driver, greedy

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

SIZES = (1, 2, 4, 6)
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}


def gemma2() -> PreTrainedModel:
    """Capped scores, and two KV groups: one has a window."""
    return decoder(Gemma2Config, head_dim=16, sliding_window=12, attn_logit_softcapping=2.0)


def outputs(driver: Driver) -> dict[str, list[int]]:
    """Outputs of eight requests with prompts of up to 40 tokens, two of them preempted and resumed."""
    draw = random.Random(1)
    for number in range(8):
        prompt = [draw.randrange(30) for _ in range(draw.choice((1, 5, 23, 40)))]
        params = greedy(3 + number)
        if number % 2:
            params = SamplingParams(max_tokens=3 + number, seed=number, temperature=0.8, top_k=20)
        driver.add(f"{number}", prompt, params)
    driver.step(budget=64)
    driver.step(budget=64)
    driver.preempt("0")
    driver.preempt("3")
    return driver.run(budget=64)


@pytest.mark.parametrize("model", [llama, gemma2])
def test_replayed_steps_give_the_same_tokens(
    model: Callable[[], PreTrainedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(model(), tmp_path)
    expected = outputs(Driver.load(path))
    recorder = capture_on_cpu(monkeypatch)
    found = outputs(Driver.load(path, graph_sizes=SIZES))
    assert recorder.count == len(SIZES)
    assert set(recorder.replays) == set(range(len(SIZES))), "a size was never used"
    assert found == expected


def test_experts_that_the_host_waits_for_are_not_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = capture_on_cpu(monkeypatch)
    monkeypatch.setattr(Experts, "waits_for_device", True)
    Driver.load(save(decoder(Qwen3MoeConfig, **MOE), tmp_path), graph_sizes=(2,))
    assert recorder.count == 0
    assert "without CUDA graphs" in caplog.text


def test_a_step_beyond_the_largest_graph_is_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(llama(), tmp_path)
    recorder = capture_on_cpu(monkeypatch)
    driver = Driver.load(path, graph_sizes=(2,))
    for number in range(3):
        driver.add(f"{number}", [1, 2, 3], greedy(4))
    driver.step()
    driver.step()
    assert recorder.replays == []
    driver.finish()
    driver.preempt("2")  # its new prefill is a step with two decodes
    driver.step()
    assert recorder.replays == []


def test_a_chunk_of_one_token_is_not_sampled_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands before decodes of longer contexts, and ends no prompt."""

    def chunked(driver: Driver) -> dict[str, list[int]]:
        driver.add("a", range(3, 20), greedy(12))
        driver.add("b", [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 1, 2], greedy(12))
        driver.step()
        driver.add("c", [9, 8, 7, 6, 5, 4, 3, 2, 1], greedy(4))
        return driver.run(budget=3)

    path = save(llama(), tmp_path)
    expected = chunked(Driver.load(path))
    recorder = capture_on_cpu(monkeypatch)
    assert chunked(Driver.load(path, graph_sizes=(1, 2, 4))) == expected
    assert recorder.replays


def test_a_step_that_cannot_be_captured_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def no_capture(graph: object, pool: object) -> Iterator[None]:
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    for name in ("synchronize", "CUDAGraph", "graph_pool_handle"):
        monkeypatch.setattr(torch.cuda, name, lambda *given: None)
    monkeypatch.setattr(torch.cuda, "graph", no_capture)
    with pytest.raises(RuntimeError, match=r"--enforce-eager .*not permitted"):
        CudaRecorder(torch.device("cuda")).record(lambda: None)


def test_graphs_are_not_captured_if_their_plans_have_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture_on_cpu(monkeypatch)
    monkeypatch.setattr("kvasir.worker.batch.inputs._memory_size", lambda *sizes: (256, 4096))
    with pytest.raises(AssertionError, match="no room for the plans of 6 decodes"):
        Driver.load(save(llama(), tmp_path), graph_sizes=SIZES)


def test_a_graph_is_not_replayed_for_plans_at_other_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots and work lists of the attention count too."""
    recorder = capture_on_cpu(monkeypatch)
    driver = Driver.load(save(llama(), tmp_path), graph_sizes=SIZES)
    recorder.replays.clear()
    put = DeviceMemory.put

    def moved(memory: DeviceMemory, array: Array) -> Tensor:
        return put(memory, array) if array.dtype == "int64" else memory._apart(array)

    monkeypatch.setattr(DeviceMemory, "put", moved)
    driver.add("r", [5, 6, 7], greedy(4))
    with pytest.raises(AssertionError, match="other addresses"):
        driver.run(budget=64)
    assert recorder.replays == []


def test_replayed_steps_read_the_slots_of_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(llama(num_hidden_layers=1, hidden_size=32, intermediate_size=32, **HEADS), tmp_path / "model")
    modules = {"model.layers.0.self_attn.v_proj": (32, 16), "model.layers.0.mlp.down_proj": (32, 32)}
    adapters = [write_adapter(tmp_path / name, modules, rank=rank) for name, rank in (("a", 3), ("b", 5))]
    lora = LoRAConfig(enable_lora=True, max_loras=2)

    def answers(driver: Driver) -> dict[str, list[int]]:
        for slot, adapter in enumerate(adapters):
            driver.hold(slot, adapter)
        for slot in (-1, 0, 1):
            driver.add(str(slot), [5, 6, 7], greedy(3 + slot), slot=slot)
        first = driver.run()
        driver.hold(0, adapters[1])
        driver.add("other", [5, 6, 7], greedy(4), slot=0)
        return first | driver.run()

    expected = answers(Driver.load(path, lora=lora))
    recorder = capture_on_cpu(monkeypatch)
    monkeypatch.setattr("kvasir.layers.adapter_slots._KERNEL_DEVICE", "cpu")
    found = answers(Driver.load(path, lora=lora, graph_sizes=(4,)))
    assert recorder.count == 2  # with adapters and without
    assert set(recorder.replays) == {1}
    assert found == expected
    assert expected["other"] == expected["1"]
    assert len(set(map(tuple, expected.values()))) == 3
