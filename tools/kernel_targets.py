"""The GPUs that compile_kernels.py compiles for, and a kernel as it is launched there."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from kvasir.kernels.triton.device_tiles import DeviceTiles, device_tiles

DTYPE_BYTES: Final = MappingProxyType({"bf16": 2, "fp16": 2, "fp32": 4})


@dataclass(frozen=True)
class Target:
    name: str
    # A device of this kind in device_tiles.json.
    device: str
    backend: str
    arch: int | str
    warp_size: int
    # Per program.
    shared_bytes: int
    # Per thread.
    registers: int
    # For all threads of a program.
    register_file: int
    # KV caches of float8_e4m3fn are supported (kvasir.config.resolve).
    fp8: bool

    @property
    def tiles(self) -> DeviceTiles:
        return device_tiles(self.device, self.shared_bytes)


# A100, H100 and H200, B200, MI300X; limits from CUDA's programming guide and the CDNA 3 instruction set.
TARGETS: Final = (
    Target("sm_80", "NVIDIA A100-SXM4-80GB", "cuda", 80, 32, 163 * 1024, 255, 2**16, fp8=False),
    Target("sm_90", "NVIDIA H200", "cuda", 90, 32, 227 * 1024, 255, 2**16, fp8=True),
    Target("sm_100", "NVIDIA B200", "cuda", 100, 32, 227 * 1024, 255, 2**16, fp8=True),
    Target("gfx942", "AMD Instinct MI300X", "hip", "gfx942", 64, 64 * 1024, 512, 2**17, fp8=False),
)


@dataclass(frozen=True)
class Source:
    """A kernel with the parameters of its launches."""

    kernel: Any
    constants: Mapping[str, object]
    # Of parameters that are neither constants nor None.
    types: Mapping[str, str]
    # Multiples of 16 in launches, as all addresses are.
    divisible: Collection[str]
    options: Mapping[str, object]

    @classmethod
    def of(
        cls,
        kernel: Any,
        constants: Mapping[str, object],
        types: Mapping[str, str],
        dtype: str,
        *,
        divisible: Collection[str] = (),
        options: Mapping[str, object],
    ) -> "Source":
        """Return a kernel whose parameters point to numbers of `dtype`, except those in `types`."""
        names = [name for name in kernel.arg_names if name not in constants]
        return cls(kernel, constants, {name: types.get(name, f"*{dtype}") for name in names}, divisible, options)

    def at_one(self) -> "Source":
        """Return the kernel for integers of 1, which Triton makes constants: these lack the methods of tensors."""
        ones = [name for name, kind in self.types.items() if kind == "i32"]
        types = {name: kind for name, kind in self.types.items() if name not in ones}
        return replace(self, constants={**self.constants, **dict.fromkeys(ones, 1)}, types=types, divisible=())


class Variant(ABC):
    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def source(self, target: Target) -> Source: ...

    def runs_on(self, target: Target) -> bool:
        return True

    def has_measured_tile(self, target: Target) -> bool:
        """Return whether a device has chosen the tile by its time."""
        return False


@dataclass(frozen=True)
class AtOne(Variant):
    """A kernel whose integers are all 1; compiled for one device, because they fail before code is made."""

    variant: Variant

    @property
    def name(self) -> str:
        return f"{self.variant.name}, integers of 1"

    def source(self, target: Target) -> Source:
        return self.variant.source(target).at_one()

    def runs_on(self, target: Target) -> bool:
        return target.name == "sm_90" and self.variant.runs_on(target)
