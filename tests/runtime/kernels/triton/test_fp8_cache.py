"""A cache of float8_e4m3fn: what the kernels write, and attention over it by the definition in float64.

Torch's conversions stand in for those of Triton's interpreter, which are wrong (bench/gpu/checks/interpreted.py).
"""

from collections.abc import Sequence

import pytest
import torch

from kvasir.kernels.triton.device_support import FP8
from kvasir.kernels.triton.paged_kernels import PagedKernels
from kvasir.kernels.triton.tiling import FP8_TILES, AttentionTile, PagedShape, StepKind, attention_tile
from kvasir.layers.rotary import Rope, RotaryEmbedding, Rotation, rotate_reference_
from runtime.kernels.triton.paged_case import PagedCase

pytestmark = pytest.mark.usefixtures("nearest")

SCALES = (0.37, 2.6)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SMALL = AttentionTile(rows=16, keys=32, num_warps=4, num_stages=2)
GROUPED = PagedShape(heads=8, kv_heads=2, head_dim=64, block_size=32)
STEPS = {
    "decodes": [(37, 1), (90, 1), (0, 1)],
    "prompts": [(0, 40), (0, 17)],
    "mixed": [(37, 1), (0, 40), (21, 19)],
}
SHAPES = {
    "64 in groups of 4": GROUPED,
    "80": PagedShape(heads=2, kv_heads=1, head_dim=80, block_size=16),
    "128 in groups of 4": PagedShape(heads=4, kv_heads=1, head_dim=128, block_size=16),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [1, 37])
def test_k_and_v_are_divided_by_their_scales(tokens: int, dtype: torch.dtype) -> None:
    shape = PagedShape(heads=4, kv_heads=2, head_dim=80, block_size=8)
    generator = torch.Generator().manual_seed(tokens)
    cache = torch.randn(9, 2, 2, 8, 80, generator=generator).to(FP8)
    slots = torch.randperm(72, generator=generator)[:tokens]
    kv = (torch.randn(tokens, 4 * 80, generator=generator) * 200).to(dtype)  # some exceed 448 times the scale
    kv[0, 3] = torch.nan
    expected = cache.clone()
    scaled = kv.float().view(tokens, 2, 2, 80) / torch.tensor([0.25, 2.0])[:, None, None]
    assert (scaled.abs() > 448).any()
    expected.permute(0, 3, 1, 2, 4)[slots // 8, slots % 8] = scaled.clamp(-448, 448).to(FP8)
    PagedKernels(shape).write(slots.int(), kv, cache, k_scale=0.25, v_scale=2.0)
    assert torch.equal(cache.view(torch.uint8), expected.view(torch.uint8))
    assert cache.float().isnan().sum() == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("head_dim", "dim"), [(16, 16), (80, 32), (48, 36)])
def test_rotated_keys_are_rounded_once(head_dim: int, dim: int, dtype: torch.dtype) -> None:
    shape, tokens = PagedShape(heads=4, kv_heads=2, head_dim=head_dim, block_size=8), 21
    generator = torch.Generator().manual_seed(dim)
    cache = torch.zeros(9, 2, 2, 8, head_dim).to(FP8)
    slots = torch.randperm(72, generator=generator)[:tokens]
    qkv = torch.randn(tokens, 8 * head_dim, generator=generator).to(dtype)
    given = qkv.clone()
    rotation = RotaryEmbedding(Rope(dim, 10000.0, None), 4096, torch.device("cpu")).rotation(
        torch.arange(tokens) * 37, dtype
    )
    exact = given.float().clone()
    in_float32 = Rotation(rotation.cos.float(), rotation.sin.float())
    rotate_reference_(exact[:, : 6 * head_dim].unflatten(1, (6, head_dim)), in_float32)
    PagedKernels(shape).rotate_and_write(
        slots.int(), qkv, rotation.cos, rotation.sin, cache, k_scale=0.25, v_scale=2.0
    )
    written = cache.permute(0, 3, 1, 2, 4)[slots // 8, slots % 8].float()  # [T, 2, kv_heads, head_dim]
    expected = exact[:, 4 * head_dim :].view(tokens, 2, 2, head_dim) / torch.tensor([0.25, 2.0])[:, None, None]
    # Half of a step of e4m3, and of its steps below the normal numbers.
    bound = torch.maximum(expected.abs() * 2.0**-4, torch.tensor(2.0**-10)) * (1 + 2.0**-12)
    assert ((written - expected).abs() <= bound).all()
    assert torch.equal(written[:, 1], expected[:, 1].to(FP8).float()), "values are only divided"
    torch.testing.assert_close(qkv[:, : 4 * head_dim].float(), exact[:, : 4 * head_dim], rtol=8e-3, atol=8e-3)
    assert torch.equal(qkv[:, 4 * head_dim :], given[:, 4 * head_dim :])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("requests", STEPS.values(), ids=STEPS)
def test_attention_gives_the_definition(
    requests: Sequence[tuple[int, int]], shape: PagedShape, dtype: torch.dtype
) -> None:
    kind = StepKind.PREFILL if any(new > 1 for _, new in requests) else StepKind.DECODES
    tile = attention_tile(shape, dtype.itemsize, kind, FP8_TILES, warp_size=32)
    PagedCase(shape, requests, dtype, scales=SCALES).check(tile)


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("window", [None, 1, 33])
def test_windows_and_caps_give_the_definition(window: int | None, softcap: float | None) -> None:
    case = PagedCase(GROUPED, STEPS["mixed"], torch.float32, scales=SCALES)
    case.check(SMALL, window=window, softcap=softcap)


@pytest.mark.parametrize(("window", "softcap"), [(None, 2.0), (600, None)])
def test_segments_give_the_definition(window: int | None, softcap: float | None) -> None:
    case = PagedCase(GROUPED, [(1100, 1), (5, 1), (700, 6)], torch.float32, scales=SCALES)
    assert case.work_list(SMALL, window, programs=64).num_slots
    case.check(SMALL, window=window, softcap=softcap, programs=64)


def test_other_types_of_cache_are_rejected() -> None:
    kernels = PagedKernels(PagedShape(heads=4, kv_heads=2, head_dim=16, block_size=8))
    slots, kv = torch.zeros(3, dtype=torch.int32), torch.zeros(3, 64)
    with pytest.raises(ValueError, match=r"float32 and a cache of torch\.float8_e5m2"):
        kernels.write(slots, kv, torch.zeros(9, 2, 2, 8, 16).to(torch.float8_e5m2))
    with pytest.raises(ValueError, match=r"float8_e4m3fn and a cache of torch\.float8_e4m3fn"):
        kernels.write(slots, kv.to(FP8), torch.zeros(9, 2, 2, 8, 16).to(FP8))
