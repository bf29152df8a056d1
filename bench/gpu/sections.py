"""The sections of a run, in their order. Imports no torch: the command lists them before a process loads it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

CEILINGS: Final = "ceilings"
DTYPES: Final = ("float32", "float16", "bfloat16")
# Query heads, K/V heads and numbers of a head.
HEADS: Final = ("32x8x128", "16x8x128", "8x8x64", "14x2x64", "8x1x64", "16x2x80", "8x4x256")
WINDOWED_HEADS: Final = ("16x4x64", "8x4x256")
MODELS: Final = ("llama-3.1-8b", "qwen3-0.6b")


@dataclass(frozen=True)
class Section:
    name: str
    # In bench.gpu. It has `run(context, argument)`.
    module: str
    argument: str = ""
    # Seconds.
    limit: float = 60.0
    # Nothing else computes meanwhile, so that its times mean something.
    alone: bool = True
    by_default: bool = True


def _checks() -> Iterator[Section]:
    # The longest sections come first: many run at the same time.

    def check(name: str, module: str, argument: str, limit: float = 100.0) -> Section:
        return Section(f"checks.{name}", f"checks.{module}", argument, limit, alone=False)

    yield from (check(f"model.{name}", "models", name) for name in ("qwen3", "gemma2"))
    yield from (check(f"fused.{dtype}", "fused", dtype) for dtype in DTYPES)
    yield from (check(f"few_rows.{dtype}", "few_rows", dtype) for dtype in DTYPES)
    yield from (check(f"experts.{dtype}", "experts", dtype) for dtype in DTYPES)
    yield from (check(f"sampling.{part}", "sampling", part) for part in ("filters", "race", "greedy", "logits"))
    yield check("fp8", "fp8", "")
    for heads in WINDOWED_HEADS:
        yield from (check(f"windows.{heads}.{dtype}", "windows", f"{heads} {dtype}") for dtype in DTYPES)
    for heads in HEADS:
        yield from (check(f"attention.{heads}.{dtype}", "attention", f"{heads} {dtype}") for dtype in DTYPES)


SECTIONS: Final = (
    *_checks(),
    Section(CEILINGS, "timings.ceilings", limit=30),
    Section("operations", "timings.operations", limit=40),
    Section("attention", "timings.attention", limit=60),
    Section("decode.llama", "timings.decode", MODELS[0], limit=70),
    Section("prefill", "timings.prefill", MODELS[0], limit=50),
    Section("decode.qwen3", "timings.decode", MODELS[1], limit=50),
    Section("workload", "timings.workload", MODELS[1], limit=90),
    Section("decode.llama-eager", "timings.decode", f"{MODELS[0]} eager", limit=50),
    Section("decode.qwen3-eager", "timings.decode", f"{MODELS[1]} eager", limit=50),
    Section("attention_fp8", "timings.attention_fp8", limit=200, by_default=False),
    Section("tune", "timings.tune", limit=150, by_default=False),
)


def chosen(only: Sequence[str], skip: Sequence[str]) -> list[Section]:
    """Return the sections named in `only`, by default the usual ones, without those named in `skip`.

    The ceilings are added if another section is timed. Raises ValueError for a name that no section has.
    """
    left_out = _named(skip)
    wanted = _named(only) if only else [section for section in SECTIONS if section.by_default]
    found = [section for section in wanted if section not in left_out]
    if any(section.alone for section in found):
        found += _named([CEILINGS])
    return [section for section in SECTIONS if section in found]


def _named(names: Sequence[str]) -> list[Section]:
    # By names, or parts of names before a dot.
    found = []
    for name in names:
        own = [section for section in SECTIONS if section.name == name or section.name.startswith(f"{name}.")]
        if not own:
            known = dict.fromkeys(section.name.partition(".")[0] for section in SECTIONS)
            raise ValueError(f"{name} is not a section: give some of {', '.join(known)}")
        found += own
    return found
