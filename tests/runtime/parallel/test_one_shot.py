import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from kvasir.parallel import one_shot
from kvasir.parallel.one_shot import MAX_BYTES, OneShotSum, connect_one_shot
from kvasir.parallel.start import leave
from kvasir.parallel.torch_group import TorchGroup

CPU = torch.device("cpu")


class Symmetric:
    """Stands for torch's module. The memory of a group of one rank is its own."""

    def __init__(self, problem: str = "") -> None:
        self.problem = problem

    def empty(self, size: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.zeros(size, dtype=dtype, device=device)

    def rendezvous(self, memory: Tensor, group: str) -> None:
        if self.problem:
            raise RuntimeError(self.problem)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[dist.ProcessGroup]:
    store = dist.FileStore(str(tmp_path / "store"), 1)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    leave()


def stand_in(monkeypatch: pytest.MonkeyPatch, factor: float, problem: str = "") -> None:
    monkeypatch.setattr(one_shot, "_symmetric_memory", lambda size: Symmetric(problem))
    kernel = SimpleNamespace(one_shot_all_reduce=lambda part, operation, name: part * factor)
    monkeypatch.setattr(torch.ops, "symm_mem", kernel, raising=False)


@pytest.mark.parametrize(
    ("x", "taken"),
    [
        (torch.zeros(MAX_BYTES // 2, dtype=torch.bfloat16), True),
        (torch.zeros(MAX_BYTES // 2 + 8, dtype=torch.bfloat16), False),
        (torch.zeros(3, 4, dtype=torch.float32), True),
        (torch.zeros(3, dtype=torch.float32), False),  # 12 bytes
        (torch.zeros(8, dtype=torch.float16), False),
        (torch.zeros(0, 8, dtype=torch.float32), False),
    ],
)
def test_small_tensors_of_the_kernels_types_are_taken(x: Tensor, taken: bool) -> None:
    assert OneShotSum(torch.zeros(MAX_BYTES, dtype=torch.uint8), lambda part: part).takes(x) is taken


def test_a_sum_keeps_shape_and_values_of_any_layout() -> None:
    memory = torch.zeros(256, dtype=torch.uint8)
    x = torch.arange(12.0).view(3, 4).t()
    total = OneShotSum(memory, lambda part: part * 2).all_reduce(x)
    assert torch.equal(total, x * 2)
    assert total.shape == (4, 3)
    assert torch.equal(memory.view(torch.float32)[:12], x.reshape(-1))


def test_a_group_adds_small_tensors_in_one_shot(group: dist.ProcessGroup) -> None:
    """The stand-in triples, and the sum of one rank is its own tensor."""
    both = TorchGroup(group, OneShotSum(torch.zeros(64, dtype=torch.uint8), lambda part: part * 3))
    assert both.all_reduce(torch.ones(16)).tolist() == [3.0] * 16
    assert both.all_reduce(torch.ones(20)).tolist() == [1.0] * 20
    assert TorchGroup(group).all_reduce(torch.ones(16)).tolist() == [1.0] * 16


def test_the_kernel_is_used_if_its_first_sum_is_right(
    monkeypatch: pytest.MonkeyPatch, group: dist.ProcessGroup
) -> None:
    stand_in(monkeypatch, factor=1)
    connected = connect_one_shot(group, CPU)
    assert connected is not None
    assert connected.takes(torch.zeros(4096, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("factor", "problem", "logged"),
    [(2, "", "differs from that of NCCL"), (1, "no handle\nand a stack", "no handle")],
)
def test_without_shared_memory_nccl_adds_everything(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    group: dist.ProcessGroup,
    factor: float,
    problem: str,
    logged: str,
) -> None:
    stand_in(monkeypatch, factor, problem)
    assert connect_one_shot(group, CPU) is None
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line.startswith("NCCL adds small tensors too")
    assert line.endswith(logged)


def test_all_gpus_must_read_each_others_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: True)
    assert one_shot._symmetric_memory(4).empty
    with pytest.raises(RuntimeError, match="16 GPUs are more than 8"):
        one_shot._symmetric_memory(16)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: (one, other) != (2, 1))
    with pytest.raises(RuntimeError, match="GPU 2 cannot read the memory of GPU 1"):
        one_shot._symmetric_memory(4)


def test_a_torch_with_other_names_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: True)
    monkeypatch.delattr(torch.distributed._symmetric_memory, "rendezvous")
    with pytest.raises(RuntimeError, match="has other names"):
        one_shot._symmetric_memory(2)
