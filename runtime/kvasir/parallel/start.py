"""Joins a worker to the other ranks, on CPUs."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist

from kvasir.parallel.gloo import INTERFACE, register_gloo
from kvasir.parallel.group import ALONE, Group
from kvasir.parallel.parallel_state import ParallelState
from kvasir.parallel.tcp_rendezvous import TcpRendezvous
from kvasir.parallel.torch_group import TorchGroup

LOOPBACK: Final = "lo"


def init(
    rank: int,
    size: int,
    rendezvous: Path | TcpRendezvous,
    timeout: float,
    *,
    tensor_parallel_size: int | None = None,
    expert_parallel: bool = False,
) -> ParallelState:
    """Wait for all ranks; return this one's groups. Call once per process.

    Several pods need a TcpRendezvous. `timeout`: seconds for this wait and each operation. `tensor_parallel_size`
    None: all ranks. Raises RuntimeError if a rank is late.
    """
    width = size if tensor_parallel_size is None else tensor_parallel_size
    if width < 1 or size % width:
        raise ValueError(f"{size} ranks cannot form tensor groups of {width}: choose a divisor of {size}")
    if size == 1:
        return ParallelState(expert_parallel=expert_parallel)
    interface = LOOPBACK if isinstance(rendezvous, Path) else rendezvous.interface
    os.environ[INTERFACE] = interface
    limit = timedelta(seconds=timeout)
    store = _store(rendezvous, size, limit)
    store.set_timeout(limit)
    dist.init_process_group(register_gloo(), store=store, rank=rank, world_size=size, timeout=limit)
    stages = range(size // width)
    tensor = _own([[stage * width + place for place in range(width)] for stage in stages], rank, limit)
    pipeline = _own([[stage * width + place for stage in stages] for place in range(width)], rank, limit)
    return ParallelState(tensor, pipeline, expert_parallel)


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _store(rendezvous: Path | TcpRendezvous, size: int, limit: timedelta) -> Any:
    if isinstance(rendezvous, Path):
        return dist.FileStore(str(rendezvous), size)  # type: ignore[attr-defined]
    make = partial(
        dist.TCPStore,  # type: ignore[attr-defined]
        rendezvous.host,
        rendezvous.port,
        size,
        is_master=rendezvous.listener is not None,
        timeout=limit,
        wait_for_workers=False,
        master_listen_fd=rendezvous.listener,
    )
    store = within(limit, make, f"no rank serves the store at {rendezvous.host}, port {rendezvous.port}")
    return dist.PrefixStore(rendezvous.incarnation, store)  # type: ignore[attr-defined]


def within(limit: timedelta, make: Callable[[], Any], message: str) -> Any:
    # Without a server, a TCPStore ignores its timeout.
    made: Future[Any] = Future()

    def run() -> None:
        try:
            made.set_result(make())
        except Exception as error:
            made.set_exception(error)

    threading.Thread(target=run, name="rendezvous", daemon=True).start()
    try:
        return made.result(limit.total_seconds())
    except TimeoutError:
        raise RuntimeError(f"{message} within {limit.total_seconds():g} s") from None


def _own(partition: list[list[int]], rank: int, limit: timedelta) -> Group:
    # All ranks make all groups, in the same order.
    own: Group = ALONE
    for ranks in partition:
        if len(ranks) == 1:
            continue
        group = dist.new_group(ranks, timeout=limit)
        if isinstance(group, dist.ProcessGroup):  # else not a member
            own = TorchGroup(group)
    return own
