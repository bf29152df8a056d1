"""A group over torch.distributed: gloo between CPUs, NCCL between GPUs."""

import torch
import torch.distributed as dist
from torch import Tensor

from kvasir.parallel.group import Sending
from kvasir.parallel.one_shot import OneShotSum


class TorchGroup:
    def __init__(self, group: dist.ProcessGroup, one_shot: OneShotSum | None = None) -> None:
        self._group = group
        self._one_shot = one_shot
        self.rank: int = group.rank()
        self.size: int = group.size()

    def all_reduce(self, x: Tensor) -> Tensor:
        if self._one_shot is not None and self._one_shot.takes(x):
            return self._one_shot.all_reduce(x)
        dist.all_reduce(x, group=self._group)
        return x

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        gathered = x.new_empty(self.size * x.shape[0], *x.shape[1:])
        dist.all_gather_into_tensor(gathered, x.contiguous(), group=self._group)
        return gathered if dim == 0 else torch.cat(gathered.chunk(self.size), dim=dim)

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        dist.broadcast(x, group=self._group, group_src=source)
        return x

    def send(self, x: Tensor, target: int) -> Sending:
        sending = dist.isend(x, group=self._group, group_dst=target)
        assert sending is not None, "this rank is a member of the group"
        return sending

    def recv(self, x: Tensor, source: int) -> Tensor:
        dist.recv(x, group=self._group, group_src=source)
        return x
