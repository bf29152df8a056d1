import importlib.util
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, PreTrainedModel

from kvasir.kernels.triton import device_support
from kvasir.kernels.triton.device_tiles import device_entries
from kvasir.layers.attention import HeadShape, StepRows
from kvasir.layers.attention_backends import choose_backend
from kvasir.layers.attention_backends.gather_planner import GatherBackend
from kvasir.layers.attention_backends.triton_paged import TritonBackend
from kvasir.layers.attention_backends.triton_planner import TritonPlan, TritonPlanner
from kvasir.layers.kv import FullAttention
from kvasir.layers.parameter import Placement
from kvasir.layers.step_memory import DeviceMemory
from kvasir.worker.kv_memory.cache_memory import block_shape
from runtime.layers.paged import Paged
from runtime.models.chunked_answers import answers
from runtime.models.tiny import decoder, llama, save

GROUPED = HeadShape(heads=4, kv_heads=2, head_dim=16)
PLACEMENT = Placement(torch.device("cuda"), torch.bfloat16)


def gemma2() -> PreTrainedModel:
    """Capped scores, and two KV groups: one has a window."""
    return decoder(Gemma2Config, head_dim=16, sliding_window=12, attn_logit_softcapping=2.0)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tests of a CPU use the Triton kernels. Contexts of more than 16 keys are split."""
    monkeypatch.setattr(choose_backend, "BACKENDS", (TritonBackend(device_type="cpu"),))
    monkeypatch.setattr("kvasir.kernels.triton.work_list.MIN_SEGMENT_KEYS", 16)


@pytest.fixture
def with_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(device_support, "_has_compiler", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    device_support.can_compile.cache_clear()
    yield
    device_support.can_compile.cache_clear()


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("window", [None, 1, 7, 33])
@pytest.mark.usefixtures("interpreted")
@torch.inference_mode()
def test_any_schedule_gives_the_definition(window: int | None, softcap: float | None) -> None:
    paged = Paged((window,), softcap, GROUPED)
    paged.caches[0].blocks.fill_(torch.nan)  # the null block too
    paged.run(np.random.default_rng(1))


@pytest.mark.parametrize("windows", [(None, 6), (1, 33)])
@pytest.mark.usefixtures("interpreted")
@torch.inference_mode()
def test_groups_share_a_memory_and_free_blocks_before_windows(windows: tuple[int | None, ...]) -> None:
    paged = Paged(windows, 1.5, GROUPED, freed=float("nan"))
    for cache in paged.caches:
        cache.blocks.fill_(torch.nan)
    paged.run(np.random.default_rng(2))


@pytest.mark.usefixtures("interpreted")
@torch.inference_mode()
def test_layers_of_one_group_may_differ_in_their_windows() -> None:
    Paged((6, 33), None, GROUPED).run(np.random.default_rng(3))


@pytest.mark.parametrize("model", [llama, gemma2])
def test_a_model_gives_the_tokens_of_plain_torch(
    model: Callable[[], PreTrainedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(model(), tmp_path)
    monkeypatch.setattr(choose_backend, "BACKENDS", (GatherBackend(),))
    expected = answers(path)
    plans = []
    plan = TritonPlanner.plan

    def noted(planner: TritonPlanner, step: StepRows) -> TritonPlan:
        plans.append(plan(planner, step))
        return plans[-1]

    monkeypatch.setattr(TritonPlanner, "plan", noted)
    monkeypatch.setattr(choose_backend, "BACKENDS", (TritonBackend(device_type="cpu"),))
    monkeypatch.setattr("kvasir.kernels.triton.work_list.MIN_SEGMENT_KEYS", 16)
    found = answers(path)
    assert any(len(work.merges) for plan in plans for work in plan.work.values()), "no context was split"
    for request, (tokens, logprobs) in expected.items():
        assert found[request][0] == tokens
        assert torch.allclose(torch.tensor(found[request][1]), torch.tensor(logprobs), atol=2e-4)


@pytest.mark.parametrize(
    ("heads", "dtype", "supported"),
    [
        (HeadShape(32, 8, 128), torch.bfloat16, True),
        (HeadShape(32, 32, 80), torch.float16, True),
        (HeadShape(8, 4, 256), torch.float32, True),
        (HeadShape(8, 4, 272), torch.bfloat16, False),
        (HeadShape(8, 4, 72), torch.bfloat16, False),
        (HeadShape(71, 1, 64), torch.bfloat16, False),
        (HeadShape(32, 8, 128), torch.float64, False),
    ],
)
@pytest.mark.usefixtures("with_compiler")
def test_heads_that_fit_a_tile_are_supported(heads: HeadShape, dtype: torch.dtype, supported: bool) -> None:
    placement = Placement(torch.device("cuda"), dtype)
    spec = FullAttention(block_shape(heads, 16, dtype))
    assert TritonBackend().supports(spec, heads, placement) == supported
    assert choose_backend.choose_backend(spec, heads, placement).name == ("triton" if supported else "torch")
    assert not TritonBackend().supports(spec, heads, Placement(torch.device("cpu"), dtype))


@pytest.mark.usefixtures("with_compiler")
def test_without_triton_or_a_compiler_torch_computes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec = FullAttention(block_shape(GROUPED, 16, torch.bfloat16))
    monkeypatch.setattr(device_support, "_has_compiler", lambda: False)
    assert choose_backend.choose_backend(spec, GROUPED, PLACEMENT).name == "torch"
    assert "C compiler" in caplog.text
    device_support.can_compile.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert choose_backend.choose_backend(spec, GROUPED, PLACEMENT).name == "torch"
    assert "the package triton is not installed" in caplog.text


@torch.inference_mode()
@pytest.mark.usefixtures("interpreted")
def test_one_line_names_the_devices_that_have_run_it(caplog: pytest.LogCaptureFixture) -> None:
    device_support._log_unproven.cache_clear()
    with caplog.at_level(logging.WARNING):
        Paged((None, 6), None, GROUPED, freed=0.0)  # two groups
    assert caplog.text.count("have been checked on") == 1


def test_a_graph_has_the_tile_of_its_padded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that replay a graph have the tile of its recording, whatever the number of requests."""
    monkeypatch.setattr(
        "kvasir.layers.attention_backends.triton_planner.tiles_for",
        lambda device: device_entries()["NVIDIA H200"],
    )
    table = np.zeros((4, 4), np.int32)
    cpu = torch.device("cpu")
    placement, memory = Placement(cpu, torch.bfloat16), DeviceMemory(cpu, 1024, table.size)
    planner = TritonPlanner(table, 16, GROUPED, {None}, placement, memory)  # 16 programs of 2 heads
    tiles = device_entries()["NVIDIA H200"].attention

    def step(requests: int) -> StepRows:
        row = np.arange(requests)
        return StepRows(row, np.full(requests, 19), np.full(requests, 1), row, row * 0 + 1, row * 0 + 3)

    memory.begin()
    assert planner.plan_padded(step(1), 4).tile == planner.plan(step(4)).tile == tiles.decode.of_rows(16)
    assert planner.plan_padded(step(1), 2).tile == planner.plan(step(2)).tile == tiles.few.of_rows(16)


def test_contexts_within_the_window_share_one_work_list() -> None:
    table = np.zeros((1, 4), np.int32)
    cpu = torch.device("cpu")
    placement, memory = Placement(cpu, torch.float32), DeviceMemory(cpu, 1024, table.size)
    planner = TritonPlanner(table, 16, GROUPED, {None, 20, 64}, placement, memory)
    memory.begin()
    place = np.zeros(1, np.int64)
    step = StepRows(place, place + 19, place + 1, place, place + 1, place + 3)
    assert set(planner.plan(step).work) == {None}
