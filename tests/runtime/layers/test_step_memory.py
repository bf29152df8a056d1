import numpy as np
import numpy.typing as npt
import pytest
import torch

from kvasir.layers import step_memory
from kvasir.layers.step_memory import DeviceMemory, HostMemory, StepMemory, copied

CPU = torch.device("cpu")

Array = npt.NDArray[np.generic]


def arrays(value: int) -> list[Array]:
    return [
        np.full(5, value, np.int64),
        np.full((2, 3), value, np.int32),
        np.full(7, value / 2, np.float32),
        np.zeros((0, 4), np.int32),
        np.array([True, False]),
        np.full((4, 3), value, np.int32)[::2],
        np.full(5, value + 1, np.int64),  # as the first one
    ]


@pytest.mark.parametrize("memory", [HostMemory(64), DeviceMemory(CPU, 1024, 64)], ids=["host", "device"])
def test_parts_and_tables_arrive(memory: StepMemory) -> None:
    for step in range(5):
        memory.begin()
        there = [memory.put(array) for array in arrays(step)]
        tables = [np.full((2, 3), step, np.int32), np.full((1, 2), 10 + step, np.int32)]
        starts = [memory.put_table(table) for table in tables]
        memory.send()
        for array, tensor in zip(arrays(step), there, strict=True):
            assert tensor.numpy().dtype == array.dtype
            assert np.array_equal(tensor.numpy(), array)
        for table, start in zip(tables, starts, strict=True):
            assert memory.tables[start : start + table.size].tolist() == table.flatten().tolist()


def test_addresses_recur_and_are_aligned() -> None:
    memory, seen = DeviceMemory(CPU, 1024, 8), []
    for step in range(5):
        memory.begin()
        seen.append([memory.put(array).data_ptr() for array in arrays(step)])
        memory.send()
    assert seen == seen[:1] * 5
    base = memory.tables.data_ptr() - 1024
    assert all((address - base) % 16 == 0 for address in seen[0])


def test_parts_of_one_size_arrive_in_their_shapes() -> None:
    memory = DeviceMemory(CPU, 1024, 0)
    for shape in ((2, 6), (6, 2), (2, 6)):
        memory.begin()
        there = memory.put(np.arange(12).reshape(shape))
        memory.send()
        assert np.array_equal(there.numpy(), np.arange(12).reshape(shape))


def test_parts_of_new_shapes_arrive_and_few_views_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_memory, "_MAX_VIEWS", 8)
    memory = DeviceMemory(CPU, 1024, 0)
    types = (np.int64, np.int32, np.float32, np.float64)
    for step in range(40):
        memory.begin()
        array = np.arange(4 * (step % 7)).reshape((2, -1) if step % 2 else (-1, 2)).astype(types[step % 4])
        there = memory.put(array)
        memory.send()
        assert there.numpy().dtype == array.dtype
        assert np.array_equal(there.numpy(), array)
    assert len(memory._views) <= 8


def test_a_part_without_room_is_copied_by_itself() -> None:
    memory = DeviceMemory(CPU, 64, 0)
    memory.begin()
    small, large = memory.put(np.arange(4)), memory.put(np.arange(100))
    memory.send()
    assert small.tolist() == [0, 1, 2, 3]
    assert large.tolist() == list(range(100))
    assert memory.overflows
    memory.begin()
    memory.put(np.arange(4))
    assert not memory.overflows


def test_addresses_of_a_step_are_those_of_all_its_tensors() -> None:
    memory = DeviceMemory(CPU, 64, 0)
    for _ in range(2):
        memory.begin()
        there = [memory.put(np.arange(size)) for size in (4, 100, 2)]
        assert memory.addresses == [tensor.data_ptr() for tensor in there]


def test_a_step_without_room_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    memory = DeviceMemory(CPU, 64, 0)
    for _ in range(3):
        memory.begin()
        memory.put(np.arange(100))
    assert [record.message for record in caplog.records] == [
        "a step needs more than the 64 bytes of its memory: it takes longer"
    ]


def test_copies_to_a_device_start_from_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[list[int]] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor.tolist())
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    assert copied(np.arange(3), torch.device("meta")).device.type == "meta"
    assert pinned == [[0, 1, 2]]
    assert copied(np.arange(2), CPU).tolist() == [0, 1]
    assert len(pinned) == 1
