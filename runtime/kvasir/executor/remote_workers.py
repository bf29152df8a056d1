"""The interface through which an engine uses the workers of its other nodes."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from kvasir.config.resolve import ResolvedEngine
from kvasir.executor.processes.worker_messages import FromWorker
from kvasir.parallel.tcp_rendezvous import TcpRendezvous
from kvasir_contract.failure import Failure


class RemoteInterruptedError(Exception):
    """A node has failed, or the engine ends."""


class RemoteSilentError(Exception):
    def __init__(self, ranks: list[int]) -> None:
        super().__init__(f"no replies of workers {ranks}")
        self.ranks = ranks


class RemoteEvents(Protocol):
    def worker_news(self, rank: int, message: FromWorker) -> None: ...

    def worker_failed(self, failure: Failure, text: str, raised: bool) -> None:
        """`raised`: another failure may be the cause."""
        ...


class RemoteWorkers(Protocol):
    """The workers of other nodes. Their ranks follow this node's."""

    num_nodes: int  # with this one

    waits: Callable[[], None]  # called each second in `begin` while nodes are missing

    def begin(
        self, settings: ResolvedEngine, ranks_per_node: int, events: RemoteEvents
    ) -> AbstractContextManager[TcpRendezvous]:
        """Wait for all nodes, start their workers, and yield where the ranks meet.

        Rank 0 must have inherited the listening socket when the context ends.
        """
        ...

    def write(self, frame: bytes) -> None: ...

    def read(self, seconds: float | None) -> list[bytes]:
        """Wait for each worker's next reply; return the bodies by rank. None: no timeout.

        Raises RemoteSilentError, after which `read` may be called again, and RemoteInterruptedError.
        """
        ...

    def silent_ranks(self) -> list[int]: ...

    def describe(self, ranks: Iterable[int]) -> str:
        """Return the states of nodes that answer in time."""
        ...

    def dismiss(self, reason: str) -> None:
        """End the workers, and every wait for their replies. Any thread."""
        ...
