"""A group of ranks and its collective operations; `Alone` is the group of a rank without peers.

Every rank of a group calls the same operations in the same order, with tensors of the same shape and type.
"""

from typing import Final, Protocol

from torch import Tensor


class Sending(Protocol):
    """A tensor on its way to another rank."""

    def wait(self) -> object:
        """Wait until the tensor may be changed. Raises RuntimeError if the peer is gone or does not receive it."""
        ...


class Group(Protocol):
    """Ranks 0 to size - 1. An operation raises RuntimeError if a peer is gone or does not answer in time."""

    @property
    def rank(self) -> int:
        """This rank's place in the group."""
        ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum over all ranks, the same bits on each; x may be overwritten."""
        ...

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """Return the tensors of all ranks next to each other in one dimension, by rank."""
        ...

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        """Return the source's tensor; x is overwritten on the other ranks."""
        ...

    def send(self, x: Tensor, target: int) -> Sending:
        """Begin to send a tensor to a rank that receives it; x must not be changed until the sending is over."""
        ...

    def recv(self, x: Tensor, source: int) -> Tensor:
        """Return the tensor that a rank sends; x is overwritten."""
        ...


class Alone:
    """The group of one rank: nothing to add, to gather or to send."""

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
