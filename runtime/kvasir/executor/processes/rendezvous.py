"""How the ranks of a split model find each other: through a file without a name, which the engine hands to them.

The kernel frees the file when the last process has closed it, whichever way the processes end. Nothing is left on a
disk, and no other user can open it. Ranks in several pods cannot share a file: they meet at a TCP store.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvasir.config.settings import ExecutorConfig
from kvasir.parallel.tcp_rendezvous import TcpRendezvous

if TYPE_CHECKING:  # torch is imported when failures can be reported
    from kvasir.parallel.parallel_state import ParallelState

_MORE_SECONDS: Final = 60.0


@contextmanager
def rendezvous_of(ranks: int) -> Iterator[int | None]:
    """Yield the file's descriptor for child processes to inherit; None for one rank."""
    if ranks == 1:
        yield None
        return
    descriptor = os.memfd_create("kvasir-rendezvous")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def descriptor_of(rendezvous: int | TcpRendezvous | None) -> int | None:
    """Return the descriptor that a worker has to inherit."""
    return rendezvous.listener if isinstance(rendezvous, TcpRendezvous) else rendezvous


def join(rank: int, rendezvous: int | TcpRendezvous | None, config: ExecutorConfig) -> "ParallelState":
    """Wait for all ranks, and close the descriptor. Return the groups of this rank.

    Raises RuntimeError if a rank does not arrive.
    """
    import torch

    from kvasir.parallel.parallel_state import SINGLE
    from kvasir.parallel.start import init

    if rendezvous is None:
        return SINGLE
    if (descriptor := descriptor_of(rendezvous)) is not None:
        os.set_inheritable(descriptor, False)
    # Longer than the engine's own timeout, which names the worker that hangs.
    timeout = 2 * config.worker_timeout + _MORE_SECONDS
    try:
        return init(
            rank,
            config.num_workers,
            rendezvous if isinstance(rendezvous, TcpRendezvous) else Path(f"/proc/self/fd/{rendezvous}"),
            timeout,
            torch.device("cpu"),
            tensor_parallel_size=config.tensor_parallel_size,
            expert_parallel=config.enable_expert_parallel,
        )
    finally:
        if isinstance(rendezvous, int):  # a store owns its socket
            os.close(rendezvous)
