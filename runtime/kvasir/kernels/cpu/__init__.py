"""CPU kernels in C: attention, matrix products and the operations between them.

hatch_build.py builds one library for each level of instruction set.
"""

import ctypes
import functools
import logging
import platform
import sys
from collections.abc import Callable, Mapping
from ctypes import c_float, c_int, c_int32, c_int64, c_void_p
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from kvasir.config.hardware.machine import cpu_flags
from kvasir.kernels.fused_operations import Activation

log = logging.getLogger(__name__)

LANES: Final = 16  # floats of a vector; sizes are multiples
MAX_TILE_ROWS: Final = 16
MAX_HEAD_NUMBERS: Final = 256

_V3: Final = frozenset(("avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"))
_V4: Final = frozenset(("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"))
# Levels of x86-64 by flags in /proc/cpuinfo, the best first.
_LEVELS: Final = MappingProxyType(
    {
        "x86-64-v4-bf16": _V3 | _V4 | {"avx512_bf16", "avx512_vnni"},
        "x86-64-v4": _V3 | _V4,
        "x86-64-v3": _V3,
    }
)


class PagedStep(ctypes.Structure):
    """`struct paged_step` of kernels.c."""

    _fields_ = (
        ("slots", c_void_p),
        ("blocks", c_void_p),
        ("tiles", c_void_p),
        *((name, c_int64) for name in ("num_tokens", "num_tiles", "blocks_stride")),
        *((name, c_int64) for name in ("heads", "kv_heads", "head_dim", "block_size", "pairs")),
    )


# In the order of `kvasir_limits` in kernels.c. Larger sizes would overflow arrays.
_LIMITS: Final = MappingProxyType(
    {
        "lanes": LANES,
        "rows": MAX_TILE_ROWS,
        "numbers": MAX_HEAD_NUMBERS,
        "bytes of a step": ctypes.sizeof(PagedStep),
    }
)

_FARTHEST: Final = 2**31 - 1  # the largest window: the kernel counts in int32
_SIGNATURES: Final = MappingProxyType(
    {
        "rms_norm": (c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_float, c_float, c_int),
        "gate": (c_void_p, c_void_p, c_int64, c_int64, c_int, c_int),
        "rotate": (c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int64, c_int64, c_int),
        "linear": (c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int),
        "log_sum_exp": (c_void_p, c_void_p, c_int64, c_int64, c_int),
        "write": (c_void_p, c_void_p, c_void_p, c_int64, c_int),
        "attend": (*(c_void_p,) * 4, c_int64, c_int64, c_float, c_float, c_void_p, c_int),
        "write_and_attend": (*(c_void_p,) * 4, c_int64, c_int64, c_float, c_float, c_void_p, c_int),
    }
)


class Kernels:
    """The kernels for one dtype. Raises TypeError for other dtypes, and ValueError for other shapes."""

    # Kernels receive addresses, so everything is checked here.
    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype, suffix: str) -> None:
        self.dtype = dtype
        self.library = library
        # Of a tile, in a step with `pairs`.
        self.pair_rows = c_int32.in_dll(library, "kvasir_pair_rows").value if suffix == "bf16" else MAX_TILE_ROWS

        def find(name: str) -> Callable[..., None]:
            function = library[f"{name}_{suffix}"]
            function.argtypes, function.restype = _SIGNATURES[name], None
            return function

        self._rms_norm = find("rms_norm")
        self._gate = find("gate")
        self._rotate = find("rotate")
        self._linear = find("linear")
        self._log_sum_exp = find("log_sum_exp")
        self._write = find("write")
        self._attend = find("attend")
        self._write_and_attend = find("write_and_attend")

    def takes_norm(self, size: int) -> bool:
        return size % LANES == 0

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, shift: float) -> Tensor:
        self._check(x, weight)
        size = x.shape[-1]
        _require(weight.shape == (size,) and self.takes_norm(size), "weight", weight)
        x, weight = x.contiguous(), weight.contiguous()
        out = torch.empty_like(x)
        pointers = x.data_ptr(), weight.data_ptr(), out.data_ptr()
        self._rms_norm(*pointers, x.numel() // size, size, eps, shift, torch.get_num_threads())
        return out

    def rms_norm_(self, x: Tensor, weight: Tensor, eps: float, shift: float) -> None:
        x.copy_(self.rms_norm(x, weight, eps, shift))

    def add_rms_norm_(self, x: Tensor, added: Tensor, weight: Tensor, eps: float, shift: float) -> Tensor:
        return self.rms_norm(x.add_(added), weight, eps, shift)

    def takes_gate(self, size: int) -> bool:
        return size % LANES == 0

    def gate(self, x: Tensor, activation: Activation) -> Tensor:
        self._check(x)
        x = x.contiguous()
        tokens, size = x.shape[0], x.shape[1] // 2
        _require(x.shape[1] % 2 == 0 and self.takes_gate(size), "x", x)
        out = x.new_empty(tokens, size)
        self._gate(x.data_ptr(), out.data_ptr(), tokens, size, activation, torch.get_num_threads())
        return out

    def takes_rotation(self, dim: int) -> bool:
        return dim % (2 * LANES) == 0

    def rotate_(self, x: Tensor, cos: Tensor, sin: Tensor) -> None:
        self._check(x, cos, sin)
        tokens, heads, head_dim = x.shape
        dim, threads = cos.shape[-1], torch.get_num_threads()
        _require(x.stride()[1:] == (head_dim, 1) and dim <= head_dim and self.takes_rotation(dim), "x", x)
        _require(cos.shape == sin.shape == (tokens, 1, dim), "cos", cos)
        pointers = x.data_ptr(), cos.data_ptr(), sin.data_ptr()
        self._rotate(*pointers, tokens, x.stride(0), heads, head_dim, dim, threads)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # x [T, inputs], weight [outputs, inputs], bias [outputs] → [T, outputs]
        # The bits of a row do not depend on the other rows.
        outputs, inputs = weight.shape
        self._check(x, weight, weight if bias is None else bias)
        _require(x.shape[1:] == (inputs,), "x", x)
        _require(weight.is_contiguous(), "weight", weight)
        if bias is not None:
            _require(bias.shape == (outputs,) and bias.is_contiguous(), "bias", bias)
        out, numbers = x.new_empty(x.shape[0], outputs), x.float().contiguous()
        pointers = numbers.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr(), out.data_ptr()
        self._linear(*pointers, x.shape[0], inputs, outputs, torch.get_num_threads())
        return out

    def log_sum_exp(self, x: Tensor) -> Tensor:  # [T, size] → [T] float32
        self._check(x)
        x = x.contiguous()
        out = x.new_empty(x.shape[0], dtype=torch.float32)
        self._log_sum_exp(x.data_ptr(), out.data_ptr(), *x.shape, torch.get_num_threads())
        return out

    def write(self, step: PagedStep, kv: Tensor, cache: Tensor) -> None:
        # kv [T, 2 * kv_heads * head_dim], any token stride; cache [num_blocks, 2, kv_heads, block_size, head_dim]
        self._check_step(step, kv, 2 * step.kv_heads, cache, "kv")
        self._write(ctypes.addressof(step), kv.data_ptr(), cache.data_ptr(), kv.stride(0), torch.get_num_threads())

    def attend(
        self,
        step: PagedStep,
        q: Tensor,
        cache: Tensor,
        window: int | None,
        scale: float,
        softcap: float | None,
        sinks: Tensor | None = None,
    ) -> Tensor:  # q [T, heads * head_dim], any token stride → the same shape
        self._check_step(step, q, step.heads, cache, "q")
        return self._run(self._attend, step, q, cache, window, scale, softcap, sinks)

    def write_and_attend(
        self,
        step: PagedStep,
        qkv: Tensor,
        cache: Tensor,
        window: int | None,
        scale: float,
        softcap: float | None,
        sinks: Tensor | None = None,
    ) -> Tensor:  # qkv [T, (heads + 2 kv_heads) * head_dim], any token stride → [T, heads * head_dim]
        self._check_step(step, qkv, step.heads + 2 * step.kv_heads, cache, "qkv")
        return self._run(self._write_and_attend, step, qkv, cache, window, scale, softcap, sinks)

    def _run(
        self,
        kernel: Callable[..., None],
        step: PagedStep,
        x: Tensor,
        cache: Tensor,
        window: int | None,
        scale: float,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        out = x.new_empty(x.shape[0], step.heads * step.head_dim)
        pointers = ctypes.addressof(step), x.data_ptr(), cache.data_ptr(), out.data_ptr()
        if sinks is not None:  # [heads]
            fits = sinks.shape == (step.heads,) and sinks.dtype == torch.float32 and sinks.is_contiguous()
            _require(fits, "sinks", sinks)
        rule = min(window or 0, _FARTHEST), scale, softcap or 0.0, None if sinks is None else sinks.data_ptr()
        kernel(*pointers, x.stride(0), *rule, torch.get_num_threads())
        return out

    def _check_step(self, step: PagedStep, x: Tensor, heads: int, cache: Tensor, name: str) -> None:
        self._check(x, cache)
        _require(x.shape == (step.num_tokens, heads * step.head_dim) and x.stride(1) == 1, name, x)
        per_block = (2, step.kv_heads, step.block_size, step.head_dim)
        _require(cache.shape[1:] == per_block and cache.is_contiguous(), "cache", cache)
        _require(step.head_dim % LANES == 0 and step.head_dim <= MAX_HEAD_NUMBERS, "cache", cache)

    def _check(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            if tensor.dtype != self.dtype:
                raise TypeError(f"the kernel takes {self.dtype}, not {tensor.dtype}")


def _require(fits: bool, name: str, tensor: Tensor) -> None:
    if not fits:
        raise ValueError(f"the kernel does not take {name} of shape {list(tensor.shape)} and these strides here")


def kernels_for(device: torch.device, dtype: torch.dtype) -> Kernels | None:
    return _load().get(dtype) if device.type == "cpu" else None


@functools.cache
def _load() -> Mapping[torch.dtype, Kernels]:
    level = supported_levels()[:1]
    try:
        if not level:
            raise OSError(f"no kernels for {sys.platform} on {platform.machine()} without AVX2")
        kernels = load(level[0])
    except OSError as error:
        log.warning("plain torch computes, more slowly: %s", error)
        return {}
    log.info("CPU kernels: %s", level[0])
    return kernels


def load(level: str) -> Mapping[torch.dtype, Kernels]:
    """Load the library. Raises OSError if it is missing, older than its sources, or built with other limits."""
    file = Path(__file__).with_name(f"kernels-{level}.so")
    if not file.exists():
        raise OSError(f"{file} is missing: install Kvasir again (in a clone: make, or pip install -e .)")
    sources = [path for path in file.parent.iterdir() if path.suffix in (".c", ".h", ".inc")]
    if any(source.stat().st_mtime_ns > file.stat().st_mtime_ns for source in sources):
        raise OSError(f"{file} is older than its sources: make, or pip install -e ., compiles it")
    library = ctypes.CDLL(str(file))
    _check_limits(library, file)
    library.use_team(_team())
    return {
        torch.bfloat16: Kernels(library, torch.bfloat16, "bf16"),
        torch.float32: Kernels(library, torch.float32, "f32"),
    }


def _check_limits(library: ctypes.CDLL, file: Path) -> None:
    try:
        built = (c_int32 * len(_LIMITS)).in_dll(library, "kvasir_limits")
    except ValueError:
        raise OSError(f"{file} does not export its limits: install Kvasir again") from None
    different = [
        f"{name} {there} instead of {here}"
        for (name, here), there in zip(_LIMITS.items(), built, strict=True)
        if here != there
    ]
    if different:
        raise OSError(f"{file} was built with other limits ({', '.join(different)}): install Kvasir again")


def supported_levels() -> list[str]:
    """Return the levels that this machine can run, the best first."""
    if sys.platform != "linux":
        return []
    if platform.machine() == "aarch64":
        return ["aarch64"]
    flags = cpu_flags()
    return [level for level, needed in _LEVELS.items() if needed <= flags]


def _team() -> c_void_p:
    # The kernels run on torch's OpenMP threads: a second pool would compete for the cores.
    torch_cpu = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))
    try:
        return ctypes.cast(torch_cpu.GOMP_parallel, c_void_p)
    except AttributeError:
        raise OSError("torch was built without OpenMP") from None
