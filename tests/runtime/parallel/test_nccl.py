import mmap
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.executor.processes.rendezvous import gpu_operation_timeout, join
from kvasir.parallel.nccl import switch_recorder_on
from kvasir.parallel.torch_group import TorchGroup
from runtime.worker.driver import engine_settings

TWO = ExecutorConfig(tensor_parallel_size=2, worker_timeout=200.0, disable_custom_all_reduce=True)


class World:
    """Stands for the default process group."""

    def rank(self) -> int:
        return 1

    def size(self) -> int:
        return 2


def test_a_worker_joins_with_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    asked: dict[str, Any] = {}
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **how: asked.update(how, backend=backend))
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=World()))
    for name in ("NCCL_SOCKET_IFNAME", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)  # and restored at the end
    state = join(1, os.memfd_create("meeting"), engine_settings(device="cuda:1", executor=TWO))
    assert current == [torch.device("cuda:1")]
    assert (asked["backend"], asked["device_id"], asked["rank"], asked["world_size"]) == (
        "nccl",
        torch.device("cuda:1"),
        1,
        2,
    )
    assert asked["timeout"].total_seconds() == 150
    assert os.environ["NCCL_SOCKET_IFNAME"] == "lo"
    assert os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"]
    assert isinstance(state.tensor, TorchGroup)
    assert (state.tensor.rank, state.tensor.size, state.pipeline.size) == (1, 2, 1)


@pytest.mark.parametrize(("worker_timeout", "expected"), [(120.0, 90.0), (1000.0, 750.0), (10.0, 60.0)])
def test_exchanges_fail_before_the_engine_kills_the_workers(worker_timeout: float, expected: float) -> None:
    assert gpu_operation_timeout(worker_timeout) == expected


def test_the_flight_recorder_is_on_and_names_its_files() -> None:
    environ: dict[str, str] = {}
    path = switch_recorder_on(environ)
    assert Path(path).parent.is_dir()
    assert environ == {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": path,
    }
    assert switch_recorder_on({}) != path


@pytest.mark.parametrize("name", ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"])
def test_the_flight_recorder_of_the_user_stays(name: str) -> None:
    own = {name: "/records/rank-", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}
    environ = dict(own)
    assert switch_recorder_on(environ) == "/records/rank-"
    assert environ.items() >= own.items()


def test_torch_knows_the_variables_of_the_recorder() -> None:
    """Torch ignores a variable that it does not know."""
    library = Path(torch.__file__).parent / "lib/libtorch_cpu.so"
    names = {b"TORCH_NCCL_TRACE_BUFFER_SIZE", b"TORCH_NCCL_DEBUG_INFO_TEMP_FILE", b"TORCH_FR_DUMP_TEMP_FILE"}
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        assert [name for name in names if content.find(name) < 0] == []
