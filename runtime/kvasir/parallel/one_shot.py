"""Sums of small tensors over memory that all GPUs read directly. Has not run on several GPUs yet.

A torch kernel adds in rank order: the same bits on each rank.
"""

import logging
from collections.abc import Callable
from itertools import permutations
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

log = logging.getLogger(__name__)

T = TypeVar("T")
# vLLM's limit for 8 GPUs (csrc/custom_all_reduce.cuh); not measured.
MAX_BYTES: Final = 256 * 1024
_MAX_RANKS: Final = 8
# Other sizes take slower kernels, or none.
_VECTOR_BYTES: Final = 16
_DTYPES: Final = (torch.bfloat16, torch.float32)


class OneShotSum:
    """All ranks need the same shapes and types."""

    def __init__(self, memory: Tensor, add: Callable[[Tensor], Tensor]) -> None:
        # `memory`: [bytes] uint8, symmetric. `add` sums it over all ranks.
        self._memory = memory
        self._add = add

    def takes(self, x: Tensor) -> bool:
        return x.dtype in _DTYPES and 0 < x.nbytes <= self._memory.nbytes and x.nbytes % _VECTOR_BYTES == 0

    def all_reduce(self, x: Tensor) -> Tensor:
        part = self._memory[: x.nbytes].view(x.dtype)
        # Copy first: torch's combined kernel signals too early.
        part.copy_(x.reshape(-1))
        return self._add(part).view(x.shape)


def connect_one_shot(group: dist.ProcessGroup, device: torch.device) -> OneShotSum | None:
    """Rank r needs GPU r. Return None on all ranks, and log why, if the sums cannot be used."""
    try:
        symmetric = _together(group, device, lambda: _symmetric_memory(group.size()))
        memory = _together(group, device, lambda: symmetric.empty(MAX_BYTES, dtype=torch.uint8, device=device))
        _together(group, device, lambda: symmetric.rendezvous(memory, group.group_name))
        one_shot = OneShotSum(
            memory, lambda part: torch.ops.symm_mem.one_shot_all_reduce(part, "sum", group.group_name)
        )
        # Some machines report peer access that does not work.
        sums = torch.arange(MAX_BYTES // 4, dtype=torch.float32, device=device) % 1000 + group.rank()  # exact
        ours = _together(group, device, lambda: one_shot.all_reduce(sums))
        dist.all_reduce(sums, group=group)
        _together(group, device, lambda: _must_be_equal(ours, sums))
    except RuntimeError as error:
        log.warning("NCCL adds small tensors too, more slowly: %s", str(error).partition("\n")[0])
        return None
    log.info("tensors of up to %d KiB are added over memory that the GPUs share", MAX_BYTES // 1024)
    return one_shot


def _symmetric_memory(size: int) -> Any:
    try:
        import torch.distributed._symmetric_memory as symmetric
    except ImportError as error:
        raise RuntimeError("this version of torch has no symmetric memory") from error
    if not (
        hasattr(symmetric, "empty")
        and hasattr(symmetric, "rendezvous")
        and hasattr(torch.ops.symm_mem, "one_shot_all_reduce")
    ):
        raise RuntimeError("the symmetric memory of this version of torch has other names")
    if size > _MAX_RANKS:
        raise RuntimeError(f"{size} GPUs are more than {_MAX_RANKS}")
    for one, other in permutations(range(size), 2):
        if not torch.cuda.can_device_access_peer(one, other):
            raise RuntimeError(f"GPU {one} cannot read the memory of GPU {other}")
    return symmetric


def _must_be_equal(ours: Tensor, sums: Tensor) -> None:
    if not torch.equal(ours, sums):
        raise RuntimeError("a sum over memory that the GPUs share differs from that of NCCL")


def _together(group: dist.ProcessGroup, device: torch.device, act: Callable[[], T]) -> T:
    """Raise RuntimeError on all ranks if `act` fails on any."""
    error: Exception | None = None
    try:
        result = act()
    except Exception as raised:  # a private module may raise anything
        error = raised
    failed = torch.tensor([error is not None], dtype=torch.int32, device=device)
    dist.all_reduce(failed, op=dist.ReduceOp.MAX, group=group)
    if error is not None:
        raise RuntimeError(str(error)) from error
    if failed.item():
        raise RuntimeError("it failed on another rank, whose log has the cause")
    return result
