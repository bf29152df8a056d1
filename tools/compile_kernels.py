"""Compiles the Triton kernels ahead of time for several GPUs, and checks that they fit.

    make kernels                                             # compiles everything
    make kernels KERNELS_ARGS='--only "attend bf16 64"'      # also prints what these kernels use

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
from itertools import chain
from multiprocessing import get_context
from typing import Final

from tools.kernel_targets import TARGETS, AtOne, Target, Variant
from tools.kernel_variants_adapters import adapter_variants
from tools.kernel_variants_attention import attention_variants
from tools.kernel_variants_experts import expert_variants
from tools.kernel_variants_few_rows import row_variants
from tools.kernel_variants_quantised import quantised_variants
from tools.kernel_variants_sampling import sampling_variants

_INTERPRETER: Final = "TRITON_INTERPRET"
_CACHE: Final = "TRITON_CACHE_DIR"


# ptxas sometimes keeps a number or two on the stack, also if registers are free.
MAX_SPILLED_BYTES: Final = 16


def variants() -> Iterator[Variant]:
    families = (
        *(attention_variants, row_variants, sampling_variants),
        *(expert_variants, adapter_variants, quantised_variants),
    )
    for variant in chain.from_iterable(family() for family in families):
        yield variant
        yield AtOne(variant)


@dataclass(frozen=True)
class Usage:
    registers: int
    # Stored and loaded, per thread.
    spilled_bytes: int
    shared_bytes: int
    num_warps: int

    def problems(self, target: Target, *, has_measured_tile: bool = False) -> Iterator[str]:
        # The fastest tile of a device may spill.
        if self.spilled_bytes > MAX_SPILLED_BYTES and not has_measured_tile:
            yield f"{self.spilled_bytes} bytes spill"
        if self.shared_bytes > target.shared_bytes:
            yield f"{self.shared_bytes} bytes of shared memory of {target.shared_bytes}"
        if self.registers > target.registers:
            yield f"{self.registers} registers of a thread of {target.registers}"
        threads = self.num_warps * target.warp_size
        if self.registers * threads > target.register_file:
            yield f"{self.registers} registers for each of {threads} threads"


def compiled(variant: Variant, target: Target) -> Usage:
    # As a launch on this device would.
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
    # Of ptxas: registers of a thread, and spilled bytes.
    registers = re.search(r"Used (\d+) registers", log)
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert registers is not None, f"unexpected log of ptxas: {log}"
    assert spilled is not None, f"unexpected log of ptxas: {log}"
    return int(registers[1]), int(spilled[1]) + int(spilled[2])


def _amd_registers(assembly: str) -> tuple[int, int]:
    # Vector registers of a thread, and spilled bytes; scalar registers spill elsewhere.

    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s*(\d+)", assembly)
        assert found is not None, f"the assembly has no {name}"
        return int(found[1])

    return number("vgpr_count"), 8 * number("vgpr_spill_count")


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
    parser = argparse.ArgumentParser(prog="python -m tools.compile_kernels", description=__doc__.split("\n")[0])
    parser.add_argument("--only", metavar="NAME", help="print the kernels whose name begins so, and no others")
    options = parser.parse_args(arguments)
    chosen = [variant for variant in variants() if variant.name.startswith(options.only or "")]
    usages = compile_all(chosen)
    if options.only:
        print(
            "| kernel: registers of a thread, shared memory, warps |",
            " | ".join(each.name for each in TARGETS),
            "|",
        )
        print(*(_row(variant, usages) for variant in chosen), sep="\n")
    problems = [
        f"{variant.name} on {target.name}: {problem}"
        for (variant, target), usage in usages.items()
        for problem in usage.problems(target, has_measured_tile=variant.has_measured_tile(target))
    ]
    print(*problems, sep="\n")
    print(f"compiled {len(usages)} kernels for {len(TARGETS)} devices: {len(problems)} problems")
    return int(bool(problems))


def compile_all(chosen: Sequence[Variant]) -> dict[tuple[Variant, Target], Usage]:
    """Compile in separate processes, without Triton's interpreter and cache."""
    jobs = [(variant, target) for variant in chosen for target in TARGETS if variant.runs_on(target)]
    os.environ.pop(_INTERPRETER, None)  # kernels under the interpreter cannot be compiled
    with tempfile.TemporaryDirectory() as cache:
        os.environ[_CACHE] = cache
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            found = list(pool.map(compiled, *zip(*jobs, strict=True)))
    return dict(zip(jobs, found, strict=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
