"""Attention by Triton kernels on a GPU, which read the paged cache in place.

They have not run on a device yet: they are proven under Triton's interpreter and compiled ahead of time, and not
measured on a GPU. Triton is imported when the backend plans for a group, not before.
"""

import functools
import importlib.util
import logging
import os
import shutil
import sysconfig
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from kvasir.kernels.triton.tiling import MOST_GROUP, MOST_NUMBERS, MULTIPLE_OF, AttentionTile
from kvasir.layers.attention import BlockTable, HeadShape, KVCache, head_major_cache
from kvasir.layers.kv import BlockShape, KVSpec
from kvasir.layers.parameter import Placement

if TYPE_CHECKING:
    from kvasir.kernels.triton.paged_kernels import PagedKernels, Work
    from kvasir.layers.attention_backends.triton_planner import TritonPlanner

log = logging.getLogger(__name__)

_OLDEST: Final = 8
"""Compute capability of the oldest NVIDIA GPU that the kernels have been compiled for (sm_80)."""
_DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class TritonPlan:
    """An AttentionPlan."""

    kernels: "PagedKernels"
    tile: AttentionTile
    slots: Tensor  # [T] int32: block * block_size + place in it, where each token's K and V are written
    work: "Mapping[int | None, Work]"
    """By window. None: of layers that see all tokens, and of those whose window no context of this step exceeds."""

    def write(self, kv: Tensor, cache: KVCache) -> None:
        self.kernels.write(self.slots, kv, cache.blocks)

    def attend(
        self, q: Tensor, cache: KVCache, scale: float, *, window: int | None = None, softcap: float | None = None
    ) -> Tensor:
        work = self.work.get(window)
        if work is None:
            work, window = self.work[None], None
        return self.kernels.attend(work, self.tile, q, cache.blocks, scale=scale, window=window, softcap=softcap)

    def write_and_attend(
        self, qkv: Tensor, cache: KVCache, scale: float, *, window: int | None = None, softcap: float | None = None
    ) -> Tensor:
        kv_size = 2 * cache.blocks.shape[2] * cache.blocks.shape[4]
        q, kv = qkv[:, :-kv_size], qkv[:, -kv_size:]
        self.write(kv, cache)
        return self.attend(q, cache, scale, window=window, softcap=softcap)


class TritonBackend:
    """The kernels for GPUs. Tests give `device_type="cpu"`, to run them under Triton's interpreter."""

    name = "triton"

    def __init__(self, device_type: str = "cuda") -> None:
        self._device_type = device_type

    def supports(self, spec: KVSpec, heads: HeadShape, placement: Placement) -> bool:
        fits = heads.head_dim % MULTIPLE_OF == 0 and heads.head_dim <= MOST_NUMBERS and heads.group <= MOST_GROUP
        there = placement.device.type == self._device_type and placement.dtype in _DTYPES
        return fits and there and _can_compile(placement.device)

    def cache(self, memory: Tensor, block: BlockShape, group: int) -> KVCache:
        return head_major_cache(memory, block, group)

    def planner(
        self,
        table: BlockTable,
        spec: KVSpec,
        heads: HeadShape,
        windows: Set[int | None],
        placement: Placement,
    ) -> "TritonPlanner":
        from kvasir.layers.attention_backends.triton_planner import TritonPlanner  # imports triton

        _log_unproven()
        return TritonPlanner(table, spec.block.block_size, heads, windows, placement)


@functools.cache
def _can_compile(device: torch.device) -> bool:
    """Return whether Triton can compile kernels for the device; log once why not."""
    problem = _problem(device)
    if problem is not None:
        log.warning("no Triton kernels for %s: %s. Plain torch computes attention, more slowly", device, problem)
    return problem is None


def _problem(device: torch.device) -> str | None:
    """Return the reason why Triton cannot compile kernels for the device, or None."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if device.type != "cuda":  # the interpreter
        return None
    if not _has_compiler():
        return "Triton needs a C compiler and Python's headers to start kernels, and found none"
    if torch.cuda.is_available() and torch.version.hip is None:
        major, minor = torch.cuda.get_device_capability(device)
        if major < _OLDEST:
            return f"it has compute capability {major}.{minor}, and the kernels need {_OLDEST}.0"
    return None


def _has_compiler() -> bool:
    """As triton/runtime/build.py looks for it."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return compiler is not None and (Path(sysconfig.get_path("include")) / "Python.h").exists()


@functools.cache
def _log_unproven() -> None:
    log.warning(
        "attention is computed by Triton kernels that have not run on a device yet: they are proven under Triton's "
        "interpreter and compiled ahead of time only. Compare answers with those of --device cpu"
    )
