"""How the ranks of a split model meet: by an unnamed file that they inherit, or a TCP store."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvasir.config.resolve import ResolvedEngine
from kvasir.parallel.tcp_rendezvous import TcpRendezvous

if TYPE_CHECKING:  # failures must be reportable before torch is imported
    from kvasir.parallel.parallel_state import ParallelState

_MORE_SECONDS: Final = 60.0
# First steps may compile kernels.
_MIN_GPU_OPERATION_SECONDS: Final = 60.0
_SHARE_OF_WORKER_TIMEOUT: Final = 0.75  # the rest is for torch's record


@contextmanager
def rendezvous_of(ranks: int) -> Iterator[int | None]:
    """Yield the file's descriptor for child processes; None for one rank."""
    if ranks == 1:
        yield None
        return
    descriptor = os.memfd_create("kvasir-rendezvous")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def descriptor_of(rendezvous: int | TcpRendezvous | None) -> int | None:
    return rendezvous.listener if isinstance(rendezvous, TcpRendezvous) else rendezvous


def join(rank: int, rendezvous: int | TcpRendezvous | None, settings: ResolvedEngine) -> "ParallelState":
    """Wait for all ranks, and return this one's groups. Raises RuntimeError if a rank is missing."""
    import torch

    from kvasir.parallel.nccl import init_gpus
    from kvasir.parallel.parallel_state import SINGLE
    from kvasir.parallel.start import init

    config = settings.executor
    if rendezvous is None:
        return SINGLE
    if (descriptor := descriptor_of(rendezvous)) is not None:
        os.set_inheritable(descriptor, False)
    # The engine's own timeout comes first: it names the worker that hangs.
    timeout = 2 * config.worker_timeout + _MORE_SECONDS
    meeting = rendezvous if isinstance(rendezvous, TcpRendezvous) else Path(f"/proc/self/fd/{rendezvous}")
    try:
        if settings.device != "cpu":
            assert isinstance(meeting, Path), "GPUs are those of one machine"
            return init_gpus(
                rank,
                config.num_workers,
                meeting,
                torch.device(settings.device),
                timeout=timeout,
                operation_timeout=gpu_operation_timeout(config.worker_timeout),
                expert_parallel=config.enable_expert_parallel,
                one_shot=not config.disable_custom_all_reduce,
            )
        return init(
            rank,
            config.num_workers,
            meeting,
            timeout,
            tensor_parallel_size=config.tensor_parallel_size,
            expert_parallel=config.enable_expert_parallel,
        )
    finally:
        if isinstance(rendezvous, int):  # a store owns its socket
            os.close(rendezvous)


def gpu_operation_timeout(worker_timeout: float) -> float:
    """Return the seconds after which an exchange between GPUs has failed.

    Torch then writes a record before the engine kills the workers, unless --worker-timeout is below 80 s.
    """
    return max(_MIN_GPU_OPERATION_SECONDS, _SHARE_OF_WORKER_TIMEOUT * worker_timeout)
