import importlib.util
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench.gpu.sections import CEILINGS, SECTIONS, chosen
from bench.gpu.shapes import LLAMA_8B, QWEN3_06B
from bench.gpu.timings.breakdown import breakdown, short_name
from bench.gpu.timings.tile_candidates import CANDIDATES, TINY, entry_text, fastest
from bench.gpu.timings.workload import LONGEST, REQUESTS, TOKENS, requests

from bench_process import run_bench
from kvasir.kernels.triton.device_tiles import DeviceTiles, device_entries

SMOKE_TEST = (
    "checks.model.gemma2",
    "checks.fused.bfloat16",
    "checks.few_rows.bfloat16",
    "checks.experts.bfloat16",
    "checks.sampling",
    "checks.fp8",
    "checks.windows.16x4x64.float32",
    "checks.attention.8x8x64.bfloat16",
)
"""One section of each kind, and all of sampling."""

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="builds of torch without CUDA have no triton"
)


def figures_of(sections: str, folder: Path) -> Any:
    """Return the figures of the smallest sizes under the interpreter."""
    found = folder / "found.json"
    done = run_bench("bench.gpu", "--device", "cpu", "--tiny", "--only", sections, "--json", str(found))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(found.read_text())


@needs_triton
def test_checks_pass_under_the_interpreter(tmp_path: Path) -> None:
    modules = {section.module for section in SECTIONS if section.name.startswith("checks.")}
    assert {section.module for section in chosen(SMOKE_TEST, [])} == modules
    checks = figures_of(",".join(SMOKE_TEST), tmp_path)["checks"]
    kernels = {"attend_paged", "rms_norm", "multiply_row, gate", "race", "experts' products", "whole model"}
    assert kernels <= set(checks)
    assert all(each["cases"] and not each["failures"] for each in checks.values())


@needs_triton
def test_tiles_are_measured_for_an_entry_of_the_file(tmp_path: Path) -> None:
    figures = figures_of("tune", tmp_path)["sections"]["tune"]["figures"]
    ((name, entry),) = figures["entry"].items()
    found = msgspec.convert(entry, DeviceTiles)
    assert found.attention.few in TINY.decodes
    assert found.attention.prefill in TINY.prefills
    assert found.row_product.gate in TINY.rows
    assert msgspec.json.decode(f"{{{entry_text(name, found)}}}") == {name: entry}


def test_the_fastest_tile_has_the_least_geometric_mean() -> None:
    steady, quick = TINY.rows
    assert fastest({steady: [3.0, 3.0], quick: [1.0, 10.0]}) == [steady, quick]
    assert fastest({steady: [3.0, 3.0], quick: [1.0, 8.0]}) == [quick, steady]


def test_the_tiles_of_all_devices_are_candidates() -> None:
    """So that a measurement shows what it gains."""
    for entry in device_entries().values():
        attention, rows = entry.attention, entry.row_product
        assert {attention.few, attention.decode} <= set(CANDIDATES.decodes)
        assert attention.prefill in CANDIDATES.prefills
        assert {rows.norm, rows.add, rows.gate_wide, rows.gate} <= set(CANDIDATES.rows)


def test_models_have_the_sizes_of_their_checkpoints() -> None:
    assert LLAMA_8B.layer_numbers + 2 * LLAMA_8B.head_numbers == pytest.approx(8.03e9, rel=1e-3)
    assert QWEN3_06B.layer_numbers + QWEN3_06B.head_numbers == pytest.approx(0.596e9, rel=1e-3)
    assert LLAMA_8B.step_bytes(1, 2) - LLAMA_8B.step_bytes(0, 2) == 128 * 1024


def test_the_workload_is_that_of_nano_vllm() -> None:
    """Its README gives the number of output tokens."""
    assert sum(output for _, output in requests(REQUESTS, LONGEST, TOKENS)) == 133_966


def test_times_of_kernels_are_added_up_by_name() -> None:
    def event(name: str, begin: float, duration: float, category: str = "kernel") -> dict[str, object]:
        return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": duration}

    found = breakdown(
        [event("a", 0, 10), event("b", 5, 10), event("a", 20, 5), event("launch", 0, 90, "cuda_runtime")]
    )
    assert {name: each.launches for name, each in found.kernels.items()} == {"a": 2, "b": 1}
    assert found.kernels["a"].seconds == pytest.approx(15e-6)
    assert found.busy == pytest.approx(20e-6)
    assert found.span == pytest.approx(25e-6)


def test_names_of_kernels_lose_their_parameters() -> None:
    generic = "void at::native::vectorized_elementwise_kernel<4, at::native::BUnaryFunctor<at::native::Mul>>(int)"
    assert short_name(generic) == "vectorized_elementwise_kernel Mul"
    assert short_name("void (anonymous namespace)::softmax<float>(int)") == "softmax"
    assert short_name("attend_paged") == "attend_paged"


def test_timed_sections_come_with_the_ceilings() -> None:
    assert [section.name for section in chosen(["prefill"], [])] == [CEILINGS, "prefill"]
    assert all(section.name.startswith("checks.") for section in chosen(["checks"], []))
    with pytest.raises(ValueError, match="nothing is not a section"):
        chosen(["nothing"], [])
