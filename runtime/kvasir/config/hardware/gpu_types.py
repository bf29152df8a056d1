"""GPUs by name, for sizes and bounds without the device."""

from dataclasses import dataclass
from typing import Final

from kvasir.config.hardware.device_facts import DeviceFacts
from kvasir_contract.units import parse_bytes

_ANY_NUMBER: Final = 1024


@dataclass(frozen=True)
class GpuType:
    name: str
    memory_gib: float  # as torch reports it
    bandwidth: int  # GB/s; 0: unknown
    compute_capability: tuple[int, int] | None

    def facts(self) -> DeviceFacts:
        return DeviceFacts(
            kind="cuda",
            name=self.name,
            cores=1,
            memory_limit=int(self.memory_gib * 2**30),
            fast_bfloat16=True,
            compute_capability=self.compute_capability,
            gpus=_ANY_NUMBER,
        )


GPU_TYPES: Final = {
    gpu.name: gpu
    for gpu in (
        GpuType("A10", 22.0, 600, (8, 6)),
        GpuType("A100-40GB", 39.4, 1555, (8, 0)),
        GpuType("A100", 79.2, 2039, (8, 0)),
        GpuType("L4", 22.0, 300, (8, 9)),
        GpuType("L40S", 44.4, 864, (8, 9)),
        GpuType("RTX4090", 23.6, 1008, (8, 9)),
        GpuType("RTX5090", 31.3, 1792, (12, 0)),
        GpuType("H100", 79.1, 3350, (9, 0)),
        GpuType("H200", 139.8, 4800, (9, 0)),
        GpuType("B200", 178.3, 8000, (10, 0)),
        GpuType("MI300X", 191.7, 5300, None),
    )
}


def gpu_type(text: str) -> GpuType:
    """Return the GPU of a name, or one with this memory. Raises ValueError."""
    found = {name.lower(): gpu for name, gpu in GPU_TYPES.items()}.get(text.lower())
    if found is not None:
        return found
    if not text[:1].isdigit():
        raise ValueError(f"{text!r} is not known: give a memory such as 80Gi, or one of {', '.join(GPU_TYPES)}")
    return GpuType(f"GPU of {text}", parse_bytes(text) / 2**30, 0, (9, 0))
