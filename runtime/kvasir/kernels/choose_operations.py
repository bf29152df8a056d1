"""Chooses the fused operations of a device."""

import functools

import torch

from kvasir.kernels.cpu import kernels_for
from kvasir.kernels.fused_operations import FusedOperations
from kvasir.kernels.triton.device_support import DTYPES, can_compile, log_unproven


def operations_for(device: torch.device, dtype: torch.dtype) -> FusedOperations | None:
    """Return the operations, or None if plain torch computes."""
    return kernels_for(device, dtype) if device.type == "cpu" else _on_gpu(device, dtype)


@functools.cache
def _on_gpu(device: torch.device, dtype: torch.dtype) -> FusedOperations | None:
    if device.type != "cuda" or dtype not in DTYPES or not can_compile(device):
        return None
    from kvasir.kernels.triton.fused_kernels import TritonOperations  # imports triton

    log_unproven(device)
    return TritonOperations(device, dtype)
