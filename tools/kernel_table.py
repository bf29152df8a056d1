"""Compiles the Triton kernels ahead of time for several GPUs, and writes docs/design/triton-kernels.md.

    make kernels                                           # the same as the next line
    python -m tools.kernel_table                           # compiles everything and writes the page
    python -m tools.kernel_table --check                   # exits with 1 if the page has another table
    python -m tools.kernel_table --only "attend bf16 64"   # prints the rows whose name begins so

No GPU is needed. Exits with 1 if a kernel exceeds the limits of a device, or spills registers.
"""

import argparse
import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from kvasir.kernels.triton.device_tiles import DeviceTiles, device_tiles
from kvasir.kernels.triton.experts.expert_tiling import DeviceLimits
from kvasir.kernels.triton.tiling import (
    FP8_TILES,
    OPTIONS,
    PagedShape,
    StepKind,
    attend_constants,
    attention_tile,
    has_usual_heads,
    merge_constants,
    write_constants,
)
from tools import kernel_variants_experts as experts
from tools import kernel_variants_few_rows as few_rows
from tools import kernel_variants_fused as fused
from tools.kernel_variants_sampling import DIVISIBLE as SAMPLING_DIVISIBLE
from tools.kernel_variants_sampling import SamplingVariant, kernel_of, sampling_variants

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs/design/triton-kernels.md"
_INTERPRETER: Final = "TRITON_INTERPRET"
_CACHE: Final = "TRITON_CACHE_DIR"


MOST_SPILLED_BYTES: Final = 16
"""ptxas sometimes keeps a number or two on the stack, also if registers are free."""


@dataclass(frozen=True)
class Target:
    name: str
    device: str
    """A device of this kind, by its name in device_tiles.json."""
    backend: str
    arch: int | str
    warp_size: int
    shared_bytes: int
    """Most shared memory of a program."""
    registers: int
    """Most of a thread."""
    register_file: int
    """Registers for all threads of a program."""
    fp8: bool
    """Whether KV caches of float8_e4m3fn are supported (kvasir.config.resolve)."""

    @property
    def tiles(self) -> DeviceTiles:
        return device_tiles(self.device, self.shared_bytes)


TARGETS: Final = (
    Target("sm_80", "NVIDIA A100-SXM4-80GB", "cuda", 80, 32, 163 * 1024, 255, 2**16, fp8=False),
    Target("sm_90", "NVIDIA H200", "cuda", 90, 32, 227 * 1024, 255, 2**16, fp8=True),
    Target("sm_100", "NVIDIA B200", "cuda", 100, 32, 227 * 1024, 255, 2**16, fp8=True),
    Target("gfx942", "AMD Instinct MI300X", "hip", "gfx942", 64, 64 * 1024, 512, 2**17, fp8=False),
)
"""A100, H100 and H200, B200, MI300X; limits from CUDA's programming guide and the CDNA 3 instruction set."""


@dataclass(frozen=True)
class Variant:
    kernel: str
    dtype: str
    head_dim: int
    step: str
    """Of the tile, a StepKind; the form of a fused operation; "" for a kernel without one."""
    masks: bool = True
    """Whether there are a window and a cap. Kernels with both need the most registers."""
    fp8: bool = False
    """Whether the KV cache is of float8_e4m3fn instead of the type."""

    @property
    def name(self) -> str:
        plain, cache = "" if self.masks else "plain", "fp8" if self.fp8 else ""
        parts = (self.kernel, self.dtype, cache, str(self.head_dim), self.step, plain)
        return " ".join(part for part in parts if part)


AnyVariant = Variant | SamplingVariant | experts.ExpertVariant | few_rows.RowVariant


def variants() -> Iterator[AnyVariant]:
    yield from attention_variants()
    yield from few_rows.row_variants()
    yield from sampling_variants()
    yield from experts.expert_variants()


def attention_variants() -> Iterator[Variant]:
    for dtype in ("bf16", "fp16", "fp32"):
        for head_dim in (64, 80, 128, 256):
            if dtype != "fp32" and head_dim <= 128:  # others have the tiles of decodes
                yield Variant("attend", dtype, head_dim, "few")
            yield Variant("attend", dtype, head_dim, "decode")
            if dtype != "fp32":  # whose prefills have the tiles of decodes
                yield Variant("attend", dtype, head_dim, "prefill")
    for step in ("few", "decode", "prefill"):
        yield Variant("attend", "bf16", 128, step, masks=False)
    for dtype in ("bf16", "fp32"):
        for head_dim in (80, 128, 256):
            yield Variant("merge", dtype, head_dim, "decode")
            yield Variant("write", dtype, head_dim, "")
    yield Variant("merge", "bf16", 128, "prefill")
    yield from fp8_variants()
    for name in fused.names():
        yield Variant(*name)


def fp8_variants() -> Iterator[Variant]:
    for dtype, head_dim in (("bf16", 64), ("bf16", 128), ("bf16", 256), ("fp16", 128)):
        for step in ("decode", "prefill"):
            yield Variant("attend", dtype, head_dim, step, fp8=True)
    for step in ("decode", "prefill"):
        yield Variant("attend", "bf16", 128, step, masks=False, fp8=True)
    for kernel in ("write", "rotate_write"):
        yield Variant(kernel, "bf16", 128, "", fp8=True)


@dataclass(frozen=True)
class Usage:
    """Of a compiled kernel."""

    registers: int
    """Of a thread."""
    spilled_bytes: int
    """Of a thread, stored and loaded."""
    shared_bytes: int
    num_warps: int

    def problems(self, target: Target, *, has_measured_tile: bool = False) -> Iterator[str]:
        """A tile that is the fastest one on a device may spill."""
        if self.spilled_bytes > MOST_SPILLED_BYTES and not has_measured_tile:
            yield f"{self.spilled_bytes} bytes spill"
        if self.shared_bytes > target.shared_bytes:
            yield f"{self.shared_bytes} bytes of shared memory of {target.shared_bytes}"
        if self.registers > target.registers:
            yield f"{self.registers} registers of a thread of {target.registers}"
        threads = self.num_warps * target.warp_size
        if self.registers * threads > target.register_file:
            yield f"{self.registers} registers for each of {threads} threads"


_DTYPE_BYTES: Final = MappingProxyType({"bf16": 2, "fp16": 2, "fp32": 4})
_TYPES: Final = MappingProxyType(
    {
        **dict.fromkeys(("slots", "tables", "items", "merges"), "*i32"),
        **dict.fromkeys(("partial_out", "partial_max", "partial_sum"), "*fp32"),
        **dict.fromkeys(("num_tokens", "window", "kv_stride", "q_stride"), "i32"),
        **dict.fromkeys(("inner_scale", "outer_scale", "v_scale", "k_inverse", "v_inverse"), "fp32"),
        **fused.TYPES,
    }
)
"""Of the parameters that are not of the cache's type."""
_DIVISIBLE: Final = ("kv_stride", "q_stride", *fused.DIVISIBLE)
"""Numbers that are multiples of 16 in every launch, as all addresses are: heads have multiples of 16 numbers."""


@dataclass(frozen=True)
class Source:
    """A kernel with the parameters of its launches."""

    kernel: Any
    constants: Mapping[str, object]
    types: Mapping[str, str]
    """Of the parameters that are neither constants nor None."""
    divisible: Collection[str]
    """Numbers that are multiples of 16 in launches, as all addresses are."""
    options: Mapping[str, object]


def _shape(variant: Variant) -> PagedShape:
    return PagedShape(heads=32, kv_heads=8, head_dim=variant.head_dim, block_size=16)


def has_measured_tile(variant: AnyVariant, target: Target) -> bool:
    """Return whether a device has chosen the tile by its time."""
    if target.tiles.measured is None:
        return False
    if isinstance(variant, Variant) and variant.kernel == "attend" and not variant.fp8:
        return has_usual_heads(_shape(variant), _DTYPE_BYTES[variant.dtype], target.warp_size)
    return isinstance(variant, few_rows.RowVariant)


def _attention_source(variant: Variant, target: Target) -> Source:
    from kvasir.kernels.triton.kv_write import write_kv
    from kvasir.kernels.triton.paged_attention import attend_paged
    from kvasir.kernels.triton.segment_merge import merge_segments

    shape, dtype_bytes = _shape(variant), _DTYPE_BYTES[variant.dtype]
    kind = StepKind(variant.step) if variant.kernel in ("attend", "merge") else StepKind.DECODES
    tiles = FP8_TILES if variant.fp8 else target.tiles.attention
    tile = attention_tile(shape, dtype_bytes, kind, tiles, warp_size=target.warp_size)
    options: dict[str, object] = {**OPTIONS}
    kernel: Any
    if variant.kernel in fused.KERNELS:
        kernel, constants, num_warps = fused.launch(
            variant.kernel, variant.head_dim, variant.step, target.warp_size
        )
        options["num_warps"] = num_warps
    elif variant.kernel == "write":
        kernel, constants = write_kv, write_constants(shape)
    elif variant.kernel == "merge":
        kernel, constants = merge_segments, merge_constants(shape, tile)
    else:
        kernel = attend_paged
        constants = attend_constants(
            shape,
            tile,
            windowed=variant.masks,
            capped=variant.masks,
            exact=variant.dtype == "fp32",
            interpreted=False,
        )
        options |= {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    types = {name: _TYPES.get(name, f"*{variant.dtype}") for name in kernel.arg_names if name not in constants}
    if variant.fp8:
        types["cache"] = "*fp8e4nv"
    return Source(kernel, constants, types, _DIVISIBLE, options)


def _sampling_source(variant: SamplingVariant) -> Source:
    kernel = kernel_of(variant)
    constants = {**variant.constants, **dict.fromkeys(variant.absent)}
    return Source(kernel, constants, variant.types(kernel.arg_names), SAMPLING_DIVISIBLE, variant.options)


def _expert_source(variant: experts.ExpertVariant, target: Target) -> Source:
    kernel, constants, options = variant.launch(DeviceLimits(target.shared_bytes, target.warp_size))
    names = [name for name in kernel.arg_names if name not in constants]
    types = {name: experts.TYPES.get(name, f"*{variant.dtype}") for name in names}
    return Source(kernel, constants, types, (), options)


def _row_source(variant: few_rows.RowVariant, target: Target) -> Source:
    kernel, constants, options = variant.launch(target.tiles.row_product)
    names = [name for name in kernel.arg_names if name not in constants]
    types = {name: few_rows.TYPES.get(name, f"*{variant.dtype}") for name in names}
    return Source(kernel, constants, types, few_rows.DIVISIBLE, options)


def compiled(variant: AnyVariant, target: Target) -> Usage:
    """Compile a kernel as a launch on this device would."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if isinstance(variant, SamplingVariant):
        source = _sampling_source(variant)
    elif isinstance(variant, experts.ExpertVariant):
        source = _expert_source(variant, target)
    elif isinstance(variant, few_rows.RowVariant):
        source = _row_source(variant, target)
    else:
        source = _attention_source(variant, target)
    names = source.kernel.arg_names
    ast = ASTSource(
        source.kernel,
        signature={name: source.types.get(name, "constexpr") for name in names},
        constexprs=source.constants,
        attrs={
            (place,): [["tt.divisibility", 16]]
            for place, name in enumerate(names)
            if source.types.get(name, "").startswith("*") or name in source.divisible
        },
    )
    gpu = GPUTarget(target.backend, target.arch, target.warp_size)
    triton.knobs.nvidia.dump_ptxas_log = True
    triton.knobs.compilation.always_compile = True  # a cached kernel has no log
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        result = triton.compile(ast, target=gpu, options=dict(source.options))
    if target.backend == "cuda":
        registers, spilled = _cuda_registers(log.getvalue())
    else:
        registers, spilled = _amd_registers(result.asm["amdgcn"])
    return Usage(registers, spilled, result.metadata.shared, result.metadata.num_warps)


def _cuda_registers(log: str) -> tuple[int, int]:
    """Return the registers of a thread, and the bytes that spill, from the log of ptxas."""
    registers = re.search(r"Used (\d+) registers", log)
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert registers is not None, f"unexpected log of ptxas: {log}"
    assert spilled is not None, f"unexpected log of ptxas: {log}"
    return int(registers[1]), int(spilled[1]) + int(spilled[2])


def _amd_registers(assembly: str) -> tuple[int, int]:
    """Return the vector registers of a thread, and the bytes that spill to memory: scalar registers do not."""

    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s*(\d+)", assembly)
        assert found is not None, f"the assembly has no {name}"
        return int(found[1])

    return number("vgpr_count"), 8 * number("vgpr_spill_count")


_HEAD: Final = """\
# The compiled Triton kernels

The kernels of [attention](triton-attention.md), the [fused operations](triton-operations.md), the
[products of a few rows](triton-few-rows.md), [sampling](triton-sampling.md) and
[mixtures of experts](triton-experts.md), compiled ahead of time by `make kernels` with Triton {version}.
The page shows that they compile and that they fit the devices. At most {spilled} bytes of a thread spill, except
in tiles that were the fastest ones on a device. It shows nothing about speed: that is in
[Performance](../performance.md). `attend` and `row` have the [tiles](device-tiles.md) of an A100, an H200, a B200
and the default.

A cell has the registers of a thread, the KiB of shared memory, and the warps of a program. Rows of `attend` have a
sliding window and a soft cap, which need the most registers, unless they are called plain; the groups have 4 query
heads, the blocks 16 tokens. `few` are decodes of few requests. In float32, prefills have the tiles of decodes.
`row` are products of a few rows, by the numbers of a row. Rows from `race` to `penalties` are kernels of sampling,
for a vocabulary of 151,936 tokens. Rows of `experts` have the sizes of Qwen3-30B-A3B; their number is the rows of a
block, and for `list` the rows of a step. Rows with `fp8` have a KV cache of float8_e4m3fn, which is rejected on
sm_80 and gfx942. These limits are checked:

| | sm_80 (A100) | sm_90 (H100, H200) | sm_100 (B200) | gfx942 (MI300X) |
|---|---|---|---|---|
| registers of a thread | {registers} |
| shared memory of a program | {shared} |

| kernel, type, size of a head or row, step or form | {targets} |
|---|{lines}
"""


def page(usages: Mapping[tuple[AnyVariant, Target], Usage]) -> str:
    import triton

    head = _HEAD.format(
        version=triton.__version__,
        spilled=MOST_SPILLED_BYTES,
        registers=" | ".join(str(target.registers) for target in TARGETS),
        shared=" | ".join(f"{target.shared_bytes // 1024} KiB" for target in TARGETS),
        targets=" | ".join(target.name for target in TARGETS),
        lines="---|" * len(TARGETS),
    )
    names = dict.fromkeys(variant for variant, _ in usages)
    return head + "".join(f"{_row(variant, usages)}\n" for variant in names)


def _row(variant: AnyVariant, usages: Mapping[tuple[AnyVariant, Target], Usage]) -> str:
    cells = []
    for target in TARGETS:
        usage = usages.get((variant, target))
        if usage is None:
            cells.append("—")
            continue
        spilled = f", {usage.spilled_bytes} B spill" if usage.spilled_bytes else ""
        cells.append(f"{usage.registers}, {usage.shared_bytes / 1024:.0f} KiB, {usage.num_warps}{spilled}")
    return f"| {variant.name} | {' | '.join(cells)} |"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.kernel_table", description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare the page instead of writing it")
    parser.add_argument("--only", metavar="NAME", help="print the rows whose name begins so, and write nothing")
    options = parser.parse_args(arguments)
    chosen = [variant for variant in variants() if variant.name.startswith(options.only or "")]
    usages = compile_all(chosen)
    problems = [
        f"{variant.name} on {target.name}: {problem}"
        for (variant, target), usage in usages.items()
        for problem in usage.problems(target, has_measured_tile=has_measured_tile(variant, target))
    ]
    if options.only:
        print(*(_row(variant, usages) for variant in chosen), sep="\n")
    elif not options.check:
        PAGE.write_text(page(usages))
    elif PAGE.read_text() != page(usages):
        problems.append(f"{PAGE} has another table: run make kernels")
    for problem in problems:
        print(problem)
    return int(bool(problems))


def _needs_fp8(variant: AnyVariant) -> bool:
    return isinstance(variant, Variant) and variant.fp8


def compile_all(chosen: Sequence[AnyVariant]) -> dict[tuple[AnyVariant, Target], Usage]:
    """Compile these kernels for all targets, in processes of their own, without Triton's interpreter and cache."""
    jobs = [(variant, target) for variant in chosen for target in TARGETS if target.fp8 or not _needs_fp8(variant)]
    os.environ.pop(_INTERPRETER, None)  # kernels under the interpreter cannot be compiled
    with tempfile.TemporaryDirectory() as cache:
        os.environ[_CACHE] = cache
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            found = list(pool.map(compiled, *zip(*jobs, strict=True)))
    return dict(zip(jobs, found, strict=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
