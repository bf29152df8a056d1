from dataclasses import replace

import pytest

from kvasir import __version__
from kvasir.config.executor_settings import ExecutorConfig
from kvasir.engine import build
from runtime.worker.driver import engine_settings


def test_numerics_depend_on_precision_layout_and_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "cpu_flags", lambda: frozenset({"avx2", "fma", "sse"}))
    settings = engine_settings(dtype="float32")
    plain = build.numerics_class(settings, 1)
    assert plain.startswith(f"float32 invariant tp1 pp1 cpu avx2,fma kvasir {__version__} torch ")
    split = replace(settings, executor=ExecutorConfig(tensor_parallel_size=2))
    split_experts = ExecutorConfig(tensor_parallel_size=2, enable_expert_parallel=True)
    others = [
        build.numerics_class(replace(settings, dtype="bfloat16"), 1),
        build.numerics_class(replace(settings, fp8_kv_cache=True), 1),
        build.numerics_class(replace(settings, batch_invariant=False), 1),
        build.numerics_class(split, 1),
        build.numerics_class(replace(settings, executor=split_experts), 1),
    ]
    monkeypatch.setattr(build, "cpu_flags", lambda: frozenset({"avx2", "avx512f", "fma"}))
    others.append(build.numerics_class(settings, 1))
    assert len({plain, *others}) == 7


def test_the_class_depends_on_the_engines_that_share_experts() -> None:
    settings = engine_settings(executor=ExecutorConfig(enable_expert_parallel=True))
    classes = [build.numerics_class(settings, engines) for engines in (2, 3)]
    assert " tp1 pp1 ep2 " in classes[0]
    assert classes[0].replace("ep2", "ep3") == classes[1]


def test_the_class_does_not_depend_on_sizes() -> None:
    settings = engine_settings()
    larger = replace(settings, max_num_seqs=settings.max_num_seqs + 1, threads=settings.threads + 1)
    assert build.numerics_class(larger, 1) == build.numerics_class(settings, 1)


def test_the_class_names_the_gpu() -> None:
    gpu = engine_settings(device="cuda", gpu_name="NVIDIA H200")
    assert " tp1 pp1 cuda NVIDIA H200 kvasir " in build.numerics_class(gpu, 1)
