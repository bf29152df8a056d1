import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools.compile_kernels import Usage, variants
from tools.kernel_targets import TARGETS, AtOne
from tools.kernel_variants_attention import AttentionVariant

ROOT = Path(__file__).parents[2]
GFX942, SM_90 = TARGETS[3], TARGETS[1]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_a_kernel_compiles_for_all_targets() -> None:
    name = "row gate bf16 1024"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tools.compile_kernels", "--only", name]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"\n| {name} | " in run.stdout
    assert f"\n| {name}, integers of 1 | " in run.stdout
    assert run.stdout.count("KiB") == len(TARGETS) + 1


def test_fp8_kernels_compile_for_devices_with_fp8_only() -> None:
    plain = [each for each in variants() if not isinstance(each, AtOne)]
    fp8 = [each for each in plain if " fp8 " in f"{each.name} " and not each.name.startswith("quantised")]
    assert fp8
    assert all(variant.runs_on(target) == target.fp8 for variant in fp8 for target in TARGETS)


@pytest.mark.parametrize(
    ("usage", "problem"),
    [
        (Usage(registers=128, spilled_bytes=0, shared_bytes=60_000, num_warps=4), ""),
        (Usage(registers=128, spilled_bytes=80, shared_bytes=60_000, num_warps=4), "80 bytes spill"),
        (Usage(registers=128, spilled_bytes=0, shared_bytes=300_000, num_warps=4), "bytes of shared memory"),
        (Usage(registers=255, spilled_bytes=0, shared_bytes=0, num_warps=16), "for each of 512 threads"),
    ],
)
def test_limits_of_a_device_are_checked(usage: Usage, problem: str) -> None:
    problems = list(usage.problems(SM_90))
    assert (problem in problems[0]) if problem else not problems


def test_only_a_tile_that_a_device_has_chosen_may_spill() -> None:
    usage = Usage(registers=128, spilled_bytes=80, shared_bytes=60_000, num_warps=4)
    assert not list(usage.problems(SM_90, has_measured_tile=True))
    usual, large = (AttentionVariant("attend", "bf16", head_dim, "prefill") for head_dim in (128, 256))
    assert usual.has_measured_tile(SM_90)
    assert not large.has_measured_tile(SM_90)
    assert not usual.has_measured_tile(TARGETS[0])


def test_devices_have_limits_of_their_own() -> None:
    usage = Usage(registers=300, spilled_bytes=0, shared_bytes=100_000, num_warps=4)
    assert "shared memory" in next(usage.problems(GFX942))
    assert "300 registers of a thread" in next(usage.problems(SM_90))


def test_no_parameter_has_a_name_that_triton_uses_itself() -> None:
    """The function that Triton generates for launches has these variables, and overwrites such a parameter."""
    taken = {"params", "specialization", "options", "specialize_impl"}
    names: set[str] = set()
    for file in Path(ROOT, "runtime/kvasir/kernels/triton").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and any("triton" in ast.unparse(d) for d in node.decorator_list):
                names |= {argument.arg for argument in node.args.args}
    assert "logits" in names
    assert not names & taken
