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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from tools.kernel_targets import TARGETS, Target, Variant
from tools.kernel_variants_attention import attention_variants
from tools.kernel_variants_experts import expert_variants
from tools.kernel_variants_few_rows import row_variants
from tools.kernel_variants_sampling import sampling_variants

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs/design/triton-kernels.md"
_INTERPRETER: Final = "TRITON_INTERPRET"
_CACHE: Final = "TRITON_CACHE_DIR"


MOST_SPILLED_BYTES: Final = 16
"""ptxas sometimes keeps a number or two on the stack, also if registers are free."""


def variants() -> Iterator[Variant]:
    yield from attention_variants()
    yield from row_variants()
    yield from sampling_variants()
    yield from expert_variants()


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


def compiled(variant: Variant, target: Target) -> Usage:
    """Compile a kernel as a launch on this device would."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = variant.source(target)
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


def page(usages: Mapping[tuple[Variant, Target], Usage]) -> str:
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


def _row(variant: Variant, usages: Mapping[tuple[Variant, Target], Usage]) -> str:
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
        for problem in usage.problems(target, has_measured_tile=variant.has_measured_tile(target))
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


def compile_all(chosen: Sequence[Variant]) -> dict[tuple[Variant, Target], Usage]:
    """Compile these kernels for all targets, in processes of their own, without Triton's interpreter and cache."""
    jobs = [(variant, target) for variant in chosen for target in TARGETS if variant.runs_on(target)]
    os.environ.pop(_INTERPRETER, None)  # kernels under the interpreter cannot be compiled
    with tempfile.TemporaryDirectory() as cache:
        os.environ[_CACHE] = cache
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            found = list(pool.map(compiled, *zip(*jobs, strict=True)))
    return dict(zip(jobs, found, strict=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
