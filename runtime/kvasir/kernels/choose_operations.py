"""Chooses the fused operations of a device. Layers ask here, and nowhere else."""

import torch

from kvasir.kernels.cpu import kernels_for
from kvasir.kernels.fused_operations import FusedOperations


def operations_for(device: torch.device, dtype: torch.dtype) -> FusedOperations | None:
    """Return the operations for a device and a type of number, or None: then plain torch computes."""
    return kernels_for(device, dtype)
