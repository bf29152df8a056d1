"""DeviceFacts: the machine of a worker, as far as settings depend on it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvasir.config.hardware.machine import cgroup_cores, cpu_flags, cpu_name, memory_limit, openmp_threads

# Device files of GPU drivers: NVIDIA's, on Tegra, on WSL, AMD's. Without any of them torch finds no GPU.
GPU_DRIVERS: Final = tuple(map(Path, ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd")))

# x86's dot products and tiles; Arm's dot products.
_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


@dataclass(frozen=True)
class DeviceFacts:
    """The machine that a worker runs on."""

    kind: str
    """cpu or cuda."""
    name: str
    cores: int
    """CPU cores that the cgroup grants, rounded down, at least 1."""
    memory_limit: int
    """Bytes: of the cgroup on CPU, of the device on a GPU."""
    fast_bfloat16: bool
    """The device multiplies bfloat16 matrices faster than float32 ones."""
    openmp_threads: int | None = None
    """OMP_NUM_THREADS of the user."""
    compute_capability: tuple[int, int] | None = None
    """None: not an NVIDIA GPU."""
    gpus: int = 0


def cpu_facts() -> DeviceFacts:
    """Return the facts of this machine without a GPU."""
    return DeviceFacts(
        kind="cpu",
        name=cpu_name(),
        cores=cgroup_cores(),
        memory_limit=memory_limit(),
        fast_bfloat16=not cpu_flags().isdisjoint(_BFLOAT16_FLAGS),
        openmp_threads=openmp_threads(),
    )
