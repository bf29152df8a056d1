"""Finds out what the worker computes on."""

import torch

from kvasir.config.machine import cgroup_cores, cpu_flags, cpu_name, memory_limit, openmp_threads
from kvasir.config.options import ConfigError
from kvasir.config.resolve import DeviceFacts
from kvasir.config.settings import DeviceConfig

_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""x86's dot products and tiles; Arm's dot products."""


def device_facts(config: DeviceConfig) -> DeviceFacts:
    """Raises ConfigError if the device that was asked for is not there."""
    available = torch.cuda.is_available()
    if config.device == "cuda" and not available:
        raise ConfigError("--device cuda: torch finds no usable CUDA device here; choose --device cpu, or auto")
    if config.device == "cpu" or not available:
        return DeviceFacts(
            kind="cpu",
            name=cpu_name(),
            cores=cgroup_cores(),
            memory_limit=memory_limit(),
            fast_bfloat16=not cpu_flags().isdisjoint(_BFLOAT16_FLAGS),
            openmp_threads=openmp_threads(),
        )
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return DeviceFacts(
        kind="cuda",
        name=properties.name,
        cores=cgroup_cores(),
        memory_limit=properties.total_memory,
        fast_bfloat16=properties.major >= 8,
    )
