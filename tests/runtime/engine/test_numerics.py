"""The numerics class of an engine names the facts that change how it rounds."""

from dataclasses import replace

import pytest

from kvasir import __version__
from kvasir.config.settings import ExecutorConfig
from kvasir.engine import numerics
from runtime.worker.driver import engine_settings


def test_the_class_depends_on_precision_layout_and_instruction_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "cpu_flags", lambda: frozenset({"avx2", "fma", "sse"}))
    settings = engine_settings(dtype="float32")
    plain = numerics.numerics_class(settings, shares_experts=False)
    assert plain.startswith(f"float32 tp1 pp1 cpu avx2,fma kvasir {__version__} torch ")
    split = replace(settings, executor=ExecutorConfig(tensor_parallel_size=2))
    others = [
        numerics.numerics_class(settings, shares_experts=True),
        numerics.numerics_class(replace(settings, dtype="bfloat16"), shares_experts=False),
        numerics.numerics_class(split, shares_experts=False),
    ]
    monkeypatch.setattr(numerics, "cpu_flags", lambda: frozenset({"avx2", "avx512f", "fma"}))
    others.append(numerics.numerics_class(settings, shares_experts=False))
    assert len({plain, *others}) == 5


def test_the_class_does_not_depend_on_sizes() -> None:
    settings = engine_settings()
    larger = replace(settings, max_num_seqs=settings.max_num_seqs + 1, threads=settings.threads + 1)
    assert numerics.numerics_class(larger, False) == numerics.numerics_class(settings, False)
