"""Where the engines that share experts meet when they start: a store in the process of rank 0.

Every wait is a row of short ones, so that a signal ends the process meanwhile. An engine that starts again while
the others still wait for each other ends the meeting for all of them: the connections of its predecessor are gone.
"""

import socket
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Final, cast

import msgspec
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from kvasir.config.options import ConfigError

_SLICE: Final = timedelta(seconds=1)
_PAUSE_SECONDS: Final = 0.2
_BROKEN: Final = "broken"
_ANSWER_SECONDS: Final = 60.0
"""For an operation that waits for no other engine."""


class MeetingPoint:
    """One engine at the meeting. Raises RuntimeError if another one is lost, or does not come within the limit."""

    def __init__(self, address: str, port: int, rank: int, size: int, limit: float) -> None:
        """`limit`: seconds for each wait. Raises ConfigError if rank 0 cannot listen at this address."""
        self.rank = rank
        self.size = size
        self._limit = limit
        self._place = f"{address}:{port}"
        self.host = address if rank == 0 else self._reach(address, port)
        """The address of this machine that the other engines can reach."""
        self._store = self._listen(address, port) if rank == 0 else _connect(address, port)
        self._device = dist.ProcessGroupGloo.create_device(hostname=self.host)
        """The I/O thread of gloo, for all groups: each thread wakes up many times a second."""
        if self._store.add(f"joined/{rank}", 1) > 1:
            self._store.set(_BROKEN, str(rank))
        self._check()

    def compare(self, settings: Mapping[str, str]) -> None:
        """Wait for all engines. Raises ConfigError, on each of them, if a setting differs between two."""
        self._store.set(f"settings/{self.rank}", msgspec.json.encode(settings).decode())
        self._wait("settings")
        texts = [self._store.get(f"settings/{rank}") for rank in range(self.size)]
        self._store.set(f"compared/{self.rank}", "")
        if self.rank == 0:
            self._wait("compared")  # the store ends with this process
        every = [msgspec.json.decode(text, type=dict[str, str]) for text in texts]
        first = every[0]
        for rank, found in enumerate(every):
            for name in first.keys() | found.keys():
                if (of_first := first.get(name)) != (of_rank := found.get(name)):
                    raise ConfigError(
                        f"engines that share experts need the same {name}, and rank 0 has {of_first} and rank "
                        f"{rank} has {of_rank}: give all of them the same options"
                    )

    def wait_for_all(self, state: str) -> None:
        """Wait until all engines have called this for the same state."""
        self._store.set(f"{state}/{self.rank}", "")
        self._wait(state)

    def group(self, name: str, timeout: float) -> dist.ProcessGroup:
        """Connect all engines, over gloo. `timeout`: seconds for each operation of the group."""
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timedelta(seconds=timeout)
        options._devices = [self._device]
        store = PrefixStore(name, self._store)
        return cast(dist.ProcessGroup, dist.ProcessGroupGloo(store, self.rank, self.size, options))

    def _listen(self, address: str, port: int) -> TCPStore:
        """Listen at this address only: the store of torch would listen on all interfaces."""
        try:
            listener = socket.create_server((address, port))
        except OSError as error:
            raise ConfigError(
                f"rank 0 cannot listen at --data-parallel-address {address}, --data-parallel-rpc-port {port}: "
                f"{error}; give the address of its machine and a free port"
            ) from error
        return TCPStore(
            address,
            port,
            is_master=True,
            timeout=timedelta(seconds=_ANSWER_SECONDS),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )

    def _reach(self, address: str, port: int) -> str:
        """Wait until rank 0 listens; return the own address of the connection."""
        end = time.monotonic() + self._limit
        while True:
            try:
                with socket.create_connection((address, port), timeout=_ANSWER_SECONDS) as connection:
                    return str(connection.getsockname()[0])
            except OSError as error:
                if time.monotonic() > end:
                    raise RuntimeError(
                        f"rank 0 does not listen at {self._place} (--data-parallel-address, "
                        f"--data-parallel-rpc-port): {error}"
                    ) from error
                time.sleep(_PAUSE_SECONDS)

    def _wait(self, state: str) -> None:
        """Wait for this state of every engine."""
        end = time.monotonic() + self._limit
        missing = [f"{state}/{rank}" for rank in range(self.size)]
        while missing:
            self._check()
            try:
                self._store.wait(missing[:1], _SLICE)
                missing.pop(0)
            except dist.DistStoreError:
                if time.monotonic() > end:
                    raise RuntimeError(
                        f"rank {missing[0].rpartition('/')[2]} of the engines that share experts did not come to "
                        f"{self._place} within {self._limit:.0f} s"
                    ) from None

    def _check(self) -> None:
        if self._store.check([_BROKEN]):
            rank = self._store.get(_BROKEN).decode()
            raise RuntimeError(
                f"rank {rank} of the engines that share experts has joined twice: it started again, or two engines "
                "have this --data-parallel-rank; all of them must start again"
            )


def _connect(address: str, port: int) -> TCPStore:
    return TCPStore(address, port, timeout=timedelta(seconds=_ANSWER_SECONDS), wait_for_workers=False)
