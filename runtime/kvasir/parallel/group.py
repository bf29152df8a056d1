"""A group of ranks and its collective operations.

Every rank calls the same operations in the same order, with tensors of the same shape and type.
"""

from typing import Final, Protocol

from torch import Tensor


class Sending(Protocol):
    def wait(self) -> object:
        """Wait until the tensor may be changed. Raises RuntimeError if the peer is lost."""
        ...


class Group(Protocol):
    """Ranks 0 to size - 1. An operation raises RuntimeError if a peer is lost or does not answer in time."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum over all ranks, the same bits on each. May overwrite x."""
        ...

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """Return the tensors of all ranks, concatenated in one dimension."""
        ...

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        """Return the source's tensor. Overwrites x on the other ranks."""
        ...

    def send(self, x: Tensor, target: int) -> Sending:
        """Begin to send x, which must not be changed until then."""
        ...

    def recv(self, x: Tensor, source: int) -> Tensor:
        """Receive into x, and return it."""
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
