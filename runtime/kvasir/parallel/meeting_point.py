"""A store where engines that share experts meet at their start.

Waits are short or in a thread, so signals can end the process.
"""

import errno
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Final, cast

import msgspec
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from kvasir.config.options import ConfigError
from kvasir.parallel.gloo import start_device
from kvasir.parallel.start import within

_PAUSE_SECONDS: Final = 0.2
_BROKEN: Final = "broken"
_ANSWER_SECONDS: Final = 60.0
# An ending predecessor may still have the port.
_PORT_SECONDS: Final = 20.0


class MeetingPoint:
    """Raises RuntimeError if another engine is lost, or late."""

    def __init__(
        self,
        address: str,
        port: int,
        rank: int,
        size: int,
        limit: float,
        waiting: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`limit`: seconds for each wait. `waiting` gets the missing engine's name, and "" at the end.

        Raises ConfigError if rank 0 cannot listen at this address.
        """
        self.rank = rank
        self.size = size
        self._limit = limit
        self._waiting = waiting
        self._place = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        self.host = address if rank == 0 else self._reach(address, port)
        self._store = self._listen(address, port) if rank == 0 else self._connect(address, port)
        self._device = start_device(hostname=self.host)
        with self._answers():
            if self._store.add(f"joined/{rank}", 1) > 1:
                self._store.set(_BROKEN, str(rank))
            self._check()

    def compare(self, settings: Mapping[str, str]) -> None:
        """Wait for all engines. Raises ConfigError on each if a setting differs."""
        with self._answers():
            self._store.set(f"settings/{self.rank}", msgspec.json.encode(settings).decode())
            self._wait("settings")
            texts = [self._store.get(f"settings/{rank}") for rank in range(self.size)]
            self._store.set(f"compared/{self.rank}", "")
            if self.rank == 0:
                self._wait("compared")  # the store ends with this process
        every = [msgspec.json.decode(text, type=dict[str, str]) for text in texts]
        first = every[0]
        for rank, found in enumerate(every):
            for name in first | found:  # all engines need one order
                if (of_first := first.get(name)) != (of_rank := found.get(name)):
                    raise ConfigError(
                        f"engines that share experts need the same {name}, and rank 0 has {of_first} and rank "
                        f"{rank} has {of_rank}: give all of them the same options"
                    )

    def wait_for_all(self, state: str) -> None:
        with self._answers():
            self._store.set(f"{state}/{self.rank}", "")
            self._wait(state)

    def group(self, name: str, timeout: float) -> dist.ProcessGroup:
        # `timeout` in seconds, for each operation.
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timedelta(seconds=timeout)
        options._devices = [self._device]
        make = partial(dist.ProcessGroupGloo, PrefixStore(name, self._store), self.rank, self.size, options)
        try:
            return cast(dist.ProcessGroup, within(options._timeout, make, "they have not all connected"))
        except RuntimeError as error:
            raise RuntimeError(
                f"the engines that share experts could not connect to each other: {error}"
            ) from error

    def _listen(self, address: str, port: int) -> TCPStore:
        # torch's own store listens on all interfaces.
        return TCPStore(
            address,
            port,
            is_master=True,
            timeout=timedelta(seconds=_ANSWER_SECONDS),
            wait_for_workers=False,
            master_listen_fd=self._take_port(address, port).detach(),
        )

    def _take_port(self, address: str, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        end = time.monotonic() + _PORT_SECONDS
        while True:
            try:
                listener = socket.create_server((address, port), family=family)
                self._waiting("")
                return listener
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > end:
                    raise ConfigError(
                        f"rank 0 cannot listen at --data-parallel-address {address}, --data-parallel-rpc-port "
                        f"{port}: {error}; give the address of its machine and a free port"
                    ) from error
                self._waiting(f"waits until no other process listens at {self._place}")
                time.sleep(_PAUSE_SECONDS)

    def _connect(self, address: str, port: int) -> TCPStore:
        limit = timedelta(seconds=_ANSWER_SECONDS)
        make = partial(TCPStore, address, port, timeout=limit, wait_for_workers=False)
        store: TCPStore = within(limit, make, f"{self._place} listens and does not answer as rank 0 does")
        return store

    def _reach(self, address: str, port: int) -> str:
        end = time.monotonic() + self._limit
        while True:
            try:
                with socket.create_connection((address, port), timeout=_ANSWER_SECONDS) as connection:
                    self._waiting("")
                    return str(connection.getsockname()[0])
            except OSError as error:
                if time.monotonic() > end:
                    raise RuntimeError(
                        f"rank 0 does not listen at {self._place} (--data-parallel-address, "
                        f"--data-parallel-rpc-port): {error}"
                    ) from error
                self._waiting(f"waits for rank 0 of {self.size} engines that share experts, at {self._place}")
                time.sleep(_PAUSE_SECONDS)

    def _wait(self, state: str) -> None:
        end = time.monotonic() + self._limit
        for rank in range(self.size):
            self._check()
            while not self._store.check([f"{state}/{rank}"]):  # torch logs each timeout of a wait
                if time.monotonic() > end:
                    raise RuntimeError(
                        f"rank {rank} of the engines that share experts did not come to {self._place} within "
                        f"{self._limit:.0f} s"
                    )
                self._waiting(f"waits for rank {rank} of {self.size} engines that share experts")
                time.sleep(_PAUSE_SECONDS)
                self._check()
        self._waiting("")

    @contextmanager
    def _answers(self) -> Iterator[None]:
        try:
            yield
        except dist.DistError as error:
            cause = str(error).partition("\n")[0]
            raise RuntimeError(
                f"rank 0 of the engines that share experts, at {self._place}, has ended or does not answer "
                f"({cause}): its log has the reason; all of them must start again"
            ) from error

    def _check(self) -> None:
        if self._store.check([_BROKEN]):
            rank = self._store.get(_BROKEN).decode()
            raise RuntimeError(
                f"rank {rank} of the engines that share experts has joined twice: it started again, or two engines "
                "have this --data-parallel-rank; all of them must start again"
            )
