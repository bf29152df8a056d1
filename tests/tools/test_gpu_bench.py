"""bench/gpu: a smoke test of its checks under Triton's interpreter, and the figures that are computed here."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.gpu.sections import CEILINGS, chosen
from bench.gpu.shapes import LLAMA_8B, QWEN3_06B
from bench.gpu.timings.breakdown import breakdown, short_name
from bench.gpu.timings.workload import LONGEST, REQUESTS, TOKENS, requests

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="builds of torch without CUDA have no triton"
)
def test_checks_pass_under_the_interpreter(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.gpu", "--device", "cpu", "--tiny", "--only", "checks"]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(["runtime", "."])}
    found = tmp_path / "found.json"
    done = subprocess.run([*command, "--json", str(found)], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = json.loads(found.read_text())["checks"]
    assert {"attend_paged", "rms_norm", "race", "experts' products", "whole model"} <= set(checks)
    assert all(each["cases"] and not each["failures"] for each in checks.values())


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
