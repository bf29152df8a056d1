"""Checks attention over an fp8 KV cache on a GPU, and times it. Temporary: it will become a part of bench/gpu.

    python -m bench.gpu_fp8_check                 # checks, and times of decodes and a prefill
    python -m bench.gpu_fp8_check --tiles         # and times of other tiles
    python -m bench.gpu_fp8_check --device cpu    # a smoke test under Triton's interpreter

Exits with 1 if a check fails.
"""

import argparse
import dataclasses
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch
    from bench.gpu.checks.paged_step import PagedStep

    from kvasir.kernels.triton.tiling import AttentionTile

FP8_STEPS: Final = {
    "decodes": [(37, 1), (90, 1), (0, 1), (255, 1)],
    "a split decode": [(5000, 1), (300, 1), (17, 1)],
    "prompts": [(0, 1), (0, 40), (0, 129), (0, 300)],
    "decodes, a prompt and a chunk": [(37, 1), (90, 1), (0, 40), (21, 19)],
}
TINY_STEPS: Final = {"decodes": [(37, 1), (5, 1)], "decodes, a prompt and a chunk": [(37, 1), (0, 20), (21, 9)]}
CASES: Final = (
    ("32x8x128", "bfloat16", "decodes", None, None),
    ("32x8x128", "bfloat16", "a split decode", None, None),
    ("32x8x128", "bfloat16", "prompts", None, None),
    ("32x8x128", "bfloat16", "decodes, a prompt and a chunk", 50, 20.0),
    ("14x2x64", "float16", "decodes, a prompt and a chunk", None, None),
    ("8x4x256", "bfloat16", "decodes, a prompt and a chunk", 100, None),
    ("32x32x80", "bfloat16", "prompts", None, 30.0),
    ("8x8x64", "float32", "decodes, a prompt and a chunk", None, None),
)
"""Heads, type, step, window and soft cap."""
SCALES: Final = (0.37, 0.021)
"""Of K and V: some numbers of V exceed 448 times the scale."""


@dataclass(frozen=True)
class Case:
    name: str
    error: float
    """Relative norm."""
    problem: str

    def __str__(self) -> str:
        return f"{'FAIL' if self.problem else 'ok  '} {self.name}: error {self.error:.2g} {self.problem}"


def fp8_cases(device: str = "cuda") -> Iterator[Case]:
    """Compare what the kernels write, and attention, with torch in float64."""
    from bench.gpu.checks.interpreted import kernels_of

    with kernels_of(device):
        for heads, dtype, step, window, softcap in CASES:
            if device != "cpu":
                yield from _check(device, heads, dtype, step, FP8_STEPS[step], window, softcap)
            elif step in TINY_STEPS:
                yield from _check(device, heads, dtype, step, TINY_STEPS[step], window, softcap)


def _check(
    device: str,
    heads_text: str,
    dtype_name: str,
    title: str,
    requests: Sequence[tuple[int, int]],
    window: int | None,
    softcap: float | None,
) -> Iterator[Case]:
    import torch
    from bench.gpu.checks.comparison import compare
    from bench.gpu.checks.paged_step import PagedStep, heads_of

    from kvasir.kernels.triton.device_support import FP8
    from kvasir.layers.attention import KVScales

    heads, dtype = heads_of(heads_text), getattr(torch, dtype_name)
    scales = KVScales(*SCALES)
    step = PagedStep(heads, requests, dtype, device, window=window, kv_dtype=FP8, scales=scales)
    both = torch.tensor(SCALES, dtype=torch.float64, device=device)[:, None, None]
    inverses = torch.tensor([1 / scale for scale in SCALES], device=device)[:, None, None]
    generator = torch.Generator(device).manual_seed(len(requests))
    count, width = sum(step.lengths), heads.query_size + 2 * heads.kv_size
    draw = torch.randn(count, 2, heads.kv_heads, heads.head_dim, generator=generator, device=device)
    kv = (draw * torch.tensor([1.0, 3.0], device=device)[:, None, None]).to(dtype)
    stored = (kv.float() * inverses).clamp(-448, 448).to(FP8)  # [all tokens, 2, kv_heads, head_dim]
    new = step._places
    qkv = torch.randn(len(new), width, generator=generator, device=device).to(dtype)
    qkv[:, heads.query_size :] = kv[new].flatten(1)

    # Bytes, because not all operations of torch take fp8. 0x7F is NaN.
    places = step._blocks, step._offsets
    content = step.cache.blocks.view(torch.uint8)
    by_token = content.permute(0, 3, 1, 2, 4)
    content.fill_(0x7F)
    by_token[places] = stored.view(torch.uint8)
    by_token[places[0][new], places[1][new]] = 0x7F
    scale, name = heads.head_dim**-0.5 * 2, f"{heads_text} {dtype_name} {title} window {window} cap {softcap}"
    step.plan.write(qkv[:, heads.query_size :], step.cache)
    expected = torch.full_like(content, 0x7F)
    expected.permute(0, 3, 1, 2, 4)[places] = stored.view(torch.uint8)
    differing = int((content != expected).sum())
    yield Case(f"{name}, written", differing, "bytes differ" if differing else "")

    step.kv = stored.double() * both
    exact = qkv.double()
    exact[:, heads.query_size :] = step.kv[new].flatten(1)
    out = step.plan.attend(qkv[:, : heads.query_size], step.cache, scale, window=window, softcap=softcap)
    yield Case(f"{name}, attended", *compare(out, step.attention(exact, scale, softcap), dtype))

    # Rotated K is rounded once, from float32; a sum of another order may round to the next number.
    step.qkv = qkv.clone()
    rotation = step.rotation(heads.head_dim)
    rotated = step.rotated(rotation)[:, heads.query_size :].unflatten(1, (2, heads.kv_heads, -1)) / both
    step.plan.write_and_attend(qkv, step.cache, scale, window=window, softcap=softcap, rotation=rotation)
    found = by_token[places[0][new], places[1][new]].contiguous().view(FP8).double()
    limited = rotated.clamp(-448, 448)
    bound = torch.maximum(limited.abs() * 2.0**-4, torch.tensor(2.0**-10, device=device)) * 1.01
    wrong = int(((found - limited).abs() > bound).sum())
    yield Case(f"{name}, rotated and written", wrong, "numbers are not the nearest" if wrong else "")


@dataclass(frozen=True)
class _Timed:
    title: str
    requests: Sequence[tuple[int, int]]
    tiles: Sequence[tuple[int, int, int]]
    """Keys, warps and stages to try."""


def _timed(device: str) -> tuple[_Timed, ...]:
    """Return the steps that are timed."""
    if device == "cpu":
        return (_Timed("decode 2 x 40", [(39, 1)] * 2, [(32, 1, 2)]),)
    decodes = list(itertools.product((32, 64, 128), (1, 2, 4), (2, 3)))
    few = list(itertools.product((64, 128), (4, 8), (2, 3, 4)))
    prefills = list(itertools.product((32, 64, 128), (4, 8), (2, 3)))
    return (
        _Timed("decode 256 x 1024", [(1023, 1)] * 256, decodes),
        _Timed("decode 32 x 4096", [(4095, 1)] * 32, ()),
        _Timed("decode 1 x 32768", [(32767, 1)], few),
        _Timed("prefill 8 x 1024", [(0, 1024)] * 8, prefills),
    )


def timings(device: str, *, with_tiles: bool) -> Iterator[str]:
    """Yield lines with times of attention over caches of bfloat16 and of fp8, for the heads of Llama-3.1-8B."""
    from bench.gpu.checks.interpreted import kernels_of

    with kernels_of(device):
        for timed in _timed(device):
            yield from _times(device, timed, with_tiles=with_tiles)


def _times(device: str, timed: _Timed, *, with_tiles: bool) -> Iterator[str]:
    import torch
    from bench.gpu.timing import Call, graph_seconds

    from kvasir.kernels.triton.device_support import FP8
    from kvasir.layers.attention_backends.triton_paged import TritonPlan

    tokens = sum(computed + new for computed, new in timed.requests)
    for kv_dtype in (torch.bfloat16, FP8):
        steps = [_filled(device, timed.requests, kv_dtype) for _ in range(2)]
        q = torch.randn(len(steps[0].positions), steps[0].heads.query_size, device=device).to(torch.bfloat16)

        def call(step: "PagedStep", tile: "AttentionTile | None" = None, q: torch.Tensor = q) -> Call:
            plan = step.plan
            assert isinstance(plan, TritonPlan)
            chosen = dataclasses.replace(plan, tile=tile or plan.tile)
            return lambda: chosen.attend(q, step.cache, step.heads.head_dim**-0.5)

        seconds = graph_seconds([call(step) for step in steps], on_gpu=device != "cpu", least=8)
        rate = tokens * steps[0].heads.kv_bytes(kv_dtype) / seconds
        yield f"{timed.title} {kv_dtype}: {seconds * 1e6:.0f} us, {rate / 1e9:.0f} GB/s of K and V"
    if not with_tiles:
        return
    plan = steps[0].plan
    assert isinstance(plan, TritonPlan)
    found = []
    for keys, num_warps, num_stages in timed.tiles:
        tile = type(plan.tile)(plan.tile.rows, keys, num_warps, num_stages)
        try:
            calls = [call(step, tile) for step in steps]
            found.append((graph_seconds(calls, on_gpu=device != "cpu", least=8), keys, num_warps, num_stages))
        except Exception as error:  # too much shared memory
            yield f"  {timed.title} fp8 {tile}: {type(error).__name__}"
    for seconds, *numbers in sorted(found)[:6]:
        yield f"  {timed.title} fp8 keys, warps, stages {numbers}: {seconds * 1e6:.0f} us"


def _filled(device: str, requests: Sequence[tuple[int, int]], kv_dtype: "torch.dtype") -> "PagedStep":
    """Return a step whose whole cache holds random numbers."""
    import torch
    from bench.gpu.checks.paged_step import PagedStep, heads_of

    from kvasir.layers.attention import KVScales

    heads = heads_of("4x2x16" if device == "cpu" else "32x8x128")
    step = PagedStep(heads, requests, torch.bfloat16, device, kv_dtype=kv_dtype, scales=KVScales(*SCALES))
    blocks = step.cache.blocks
    blocks.view(torch.uint8)[:] = torch.randn(blocks.shape[1:], device=device).to(kv_dtype).view(torch.uint8)
    return step


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_fp8_check", description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiles", action="store_true", help="time other tiles over an fp8 cache too")
    options = parser.parse_args()
    if options.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    import torch

    failed = 0
    with torch.inference_mode():
        for case in fp8_cases(options.device):
            print(case, flush=True)
            failed += bool(case.problem)
        for line in timings(options.device, with_tiles=options.tiles):
            print(line, flush=True)
    print(f"{failed} of the checks failed" if failed else "all checks passed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
