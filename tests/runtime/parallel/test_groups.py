import os
import time
from pathlib import Path

import pytest
import torch

from kvasir.parallel.group import Alone, Group
from kvasir.parallel.parallel_state import ParallelState
from kvasir.parallel.start import init
from runtime.parallel.processes import idle_wake_ups, run_processes
from runtime.parallel.thread_group import run_ranks


def all_operations(group: Group) -> list[list[float]]:
    own = torch.arange(6.0).view(2, 3) * (group.rank + 1)
    results = [
        group.all_reduce(own.clone()),
        group.all_reduce(own.bfloat16()).float(),
        group.all_gather(own, 1),
        group.all_gather(own[:, 1:].bfloat16(), 0).float(),
        group.broadcast(own.clone(), 1),
    ]
    if group.rank == 0:
        group.send(own, 1).wait()
        results.append(group.recv(torch.empty(2, 3), 1))
    else:
        results.append(group.recv(torch.empty(2, 3), 0))
        group.send(own, 0).wait()
    return [result.flatten().tolist() for result in results]


def in_tensor_group(state: ParallelState) -> list[list[float]]:
    return all_operations(state.tensor)


def test_processes_compute_as_threads_do(tmp_path: Path) -> None:
    by_threads = run_ranks(2, all_operations)
    assert run_processes(2, in_tensor_group, tmp_path) == by_threads
    reduced, _, gathered, _, copied, received = by_threads[0]
    assert reduced == [0, 3, 6, 9, 12, 15]
    assert gathered == [0, 1, 2, 0, 2, 4, 3, 4, 5, 6, 8, 10]
    assert copied == received == [0, 2, 4, 6, 8, 10]


def send_two(state: ParallelState) -> list[float]:
    """Rank 0 computes while it sends; rank 1 receives late."""
    group = state.tensor
    if group.rank == 0:
        sendings = [group.send(torch.full((1000, 100), value), 1) for value in (1.0, 2.0)]
        group.all_reduce(torch.ones(1))
        for sending in sendings:
            sending.wait()
        return []
    group.all_reduce(torch.ones(1))
    return [float(group.recv(torch.empty(1000, 100), 0).mean()) for _ in range(2)]


def test_a_rank_goes_on_while_it_sends(tmp_path: Path) -> None:
    assert run_processes(2, send_two, tmp_path) == [[], [1.0, 2.0]]


def random_sums(state: ParallelState) -> list[list[float]]:
    generator = torch.Generator().manual_seed(state.tensor.rank)
    sizes = (1, 5, 768, 5000)
    random = [torch.randn(size, generator=generator) * 100 for size in sizes]
    kinds = (torch.float32, torch.bfloat16)
    return [state.tensor.all_reduce(each.to(kind)).float().tolist() for each in random for kind in kinds]


def test_a_sum_has_the_same_bits_on_all_ranks(tmp_path: Path) -> None:
    first, *others = run_processes(3, random_sums, tmp_path)
    assert others == [first, first]


def places(state: ParallelState) -> tuple[int, ...]:
    seen = torch.tensor([10.0 * state.pipeline.rank + state.tensor.rank])
    across = state.tensor.all_reduce(seen.clone()), state.pipeline.all_reduce(seen.clone())
    return (state.tensor.rank, state.tensor.size, state.pipeline.rank, state.pipeline.size, *map(int, across))


def test_stages_have_tensor_groups_of_their_own(tmp_path: Path) -> None:
    found = run_processes(4, places, tmp_path, tensor_parallel_size=2)
    assert found == [(0, 2, 0, 2, 1, 10), (1, 2, 0, 2, 1, 12), (0, 2, 1, 2, 21, 10), (1, 2, 1, 2, 21, 12)]


def listening_addresses(state: ParallelState) -> list[str]:
    state.tensor.all_reduce(torch.ones(1))
    inodes = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            inodes.add(os.readlink(fd))
        except FileNotFoundError:  # of this listing
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.append(fields[1].split(":")[0])
    return found


def test_groups_listen_on_loopback_only(tmp_path: Path) -> None:
    loopback = {"0100007F", "00000000000000000000000001000000"}
    for addresses in run_processes(2, listening_addresses, tmp_path):
        assert set(addresses) <= loopback
        assert addresses


def wait_for_a_silent_peer(state: ParallelState, done: Path) -> float:
    if state.tensor.rank == 1:
        while not done.exists():
            time.sleep(0.05)
        return 0.0
    start = time.monotonic()
    try:
        with pytest.raises(RuntimeError):
            state.tensor.all_reduce(torch.ones(1))
    finally:
        done.touch()
    return time.monotonic() - start


def test_a_peer_that_does_not_answer_is_an_error_in_time(tmp_path: Path) -> None:
    waited = run_processes(2, wait_for_a_silent_peer, tmp_path, tmp_path / "done", timeout=10.0)[0]
    assert 9 < waited < 30


def test_a_rank_that_never_comes_is_an_error_in_time(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(RuntimeError):
        init(0, 2, tmp_path / "rendezvous", 1.0)
    assert time.monotonic() - start < 20


def test_one_rank_is_alone_and_needs_no_file(tmp_path: Path) -> None:
    state = init(0, 1, tmp_path / "rendezvous", 1.0)
    assert isinstance(state.tensor, Alone)
    assert not list(tmp_path.iterdir())
    x = torch.arange(3.0)
    assert state.tensor.all_reduce(x) is x
    assert state.tensor.all_gather(x, 0) is x
    assert state.tensor.broadcast(x, 0) is x
    with pytest.raises(ValueError, match="group of one"):
        state.tensor.send(x, 1)
    with pytest.raises(ValueError, match="group of one"):
        state.tensor.recv(x, 1)


def test_ranks_must_fill_their_tensor_groups(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="6 ranks cannot form tensor groups of 4"):
        init(0, 6, tmp_path / "rendezvous", 1.0, tensor_parallel_size=4)


def idle_rank(state: ParallelState) -> list[int]:
    state.tensor.all_reduce(torch.ones(1))
    return idle_wake_ups()


def test_an_idle_rank_has_one_thread_of_gloo_that_sleeps(tmp_path: Path) -> None:
    """Gloo itself has a thread for each group, which wakes up 100 times a second."""
    for wake_ups in run_processes(2, idle_rank, tmp_path):
        assert len(wake_ups) == 1
        assert wake_ups[0] < 20
