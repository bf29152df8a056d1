"""Collective operations: all ranks call them in one order, with the same shapes and types."""

from typing import Final, Protocol

from torch import Tensor


class Sending(Protocol):
    def wait(self) -> object:
        # x may be changed afterwards. Raises RuntimeError if the peer is lost.
        ...


class Group(Protocol):
    """Ranks 0 to size - 1. Raises RuntimeError if a peer is lost or late."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, x: Tensor) -> Tensor:
        # The same bits on all ranks. May overwrite x.
        ...

    def all_gather(self, x: Tensor, dim: int) -> Tensor: ...

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        # Overwrites x on the other ranks.
        ...

    def send(self, x: Tensor, target: int) -> Sending:
        # x must not be changed until `wait` returns.
        ...

    def recv(self, x: Tensor, source: int) -> Tensor:
        # Overwrites and returns x.
        ...


class Alone:
    rank = 0
    size = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return x

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        return x

    def send(self, x: Tensor, target: int) -> Sending:
        raise ValueError(f"rank {target} is not in a group of one rank")

    def recv(self, x: Tensor, source: int) -> Tensor:
        raise ValueError(f"rank {source} is not in a group of one rank")


ALONE: Final = Alone()
