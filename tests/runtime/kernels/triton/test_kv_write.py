import pytest
import torch

from kvasir.kernels.triton.paged_kernels import PagedKernels
from kvasir.kernels.triton.tiling import PagedShape
from kvasir.layers.rotary import LinearScaling, Rope, RotaryEmbedding, Rotation, rotate_qk_, rotate_reference_
from runtime.kernels.triton.rounding import assert_rounded_once


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_dim", [16, 80])
@pytest.mark.parametrize("tokens", [1, 16, 37])
def test_tokens_reach_their_places_only(tokens: int, head_dim: int, dtype: torch.dtype) -> None:
    shape = PagedShape(heads=4, kv_heads=2, head_dim=head_dim, block_size=8)
    generator = torch.Generator().manual_seed(tokens)
    cache = torch.randn(9, 2, 2, 8, head_dim, generator=generator).to(dtype)
    cache[3] = torch.nan
    slots = torch.randperm(72, generator=generator)[:tokens]
    qkv = torch.randn(tokens, 8 * head_dim, generator=generator).to(dtype)
    kv = qkv[:, 4 * head_dim :]  # with the stride of qkv between tokens
    expected = cache.clone()
    expected.permute(0, 3, 1, 2, 4)[slots // 8, slots % 8] = kv.reshape(tokens, 2, 2, head_dim)
    PagedKernels(shape).write(slots.int(), kv, cache)
    torch.testing.assert_close(cache, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("head_dim", "dim"), [(16, 16), (80, 80), (80, 32), (48, 36)])
@pytest.mark.parametrize("tokens", [1, 37])
@pytest.mark.usefixtures("nearest")
def test_rotated_tokens_reach_their_places_only(tokens: int, head_dim: int, dim: int, dtype: torch.dtype) -> None:
    shape = PagedShape(heads=4, kv_heads=2, head_dim=head_dim, block_size=8)
    generator = torch.Generator().manual_seed(tokens)
    cache = torch.full((9, 2, 2, 8, head_dim), torch.nan, dtype=dtype)
    by_token = cache.permute(0, 3, 1, 2, 4)  # [blocks, block_size, 2, kv_heads, head_dim]
    slots = torch.randperm(72, generator=generator)[:tokens]
    qkv = torch.randn(tokens, 8 * head_dim + 16, generator=generator).to(dtype)[:, : 8 * head_dim]
    given = qkv.clone()
    rotary = RotaryEmbedding(Rope(dim, 10000.0, LinearScaling(2.0)), 4096, torch.device("cpu"))
    rotation = rotary.rotation(torch.arange(tokens) * 37, dtype)
    cos, sin = rotation.cos.double(), rotation.sin.double()
    exact, terms = given.double(), given.double().abs()
    rotate_reference_(exact[:, : 6 * head_dim].unflatten(1, (6, head_dim)), Rotation(cos, sin))
    rotate_reference_(terms[:, : 6 * head_dim].unflatten(1, (6, head_dim)), Rotation(cos.abs(), sin.abs()))
    PagedKernels(shape).rotate_and_write(slots.int(), qkv, rotation.cos, rotation.sin, cache)
    written = by_token[slots // 8, slots % 8].flatten(1)  # [T, 2 * kv_heads * head_dim]
    assert_rounded_once(torch.cat((qkv[:, : 4 * head_dim], written), dim=1), exact, terms)
    assert torch.equal(qkv[:, 4 * head_dim :], given[:, 4 * head_dim :])
    by_token[slots // 8, slots % 8] = torch.nan
    assert cache.isnan().all()


def test_q_and_k_are_rotated_without_v() -> None:
    rotary = RotaryEmbedding(Rope(16, 10000.0, None), 64, torch.device("cpu"))
    rotation = rotary.rotation(torch.arange(1, 4), torch.float32)
    qkv = torch.ones(3, 8 * 16)
    rotate_qk_(qkv, 2, 16, rotation)
    changed = (qkv.view(3, 8, 16) != 1).any(-1)
    assert changed.tolist() == [[True] * 6 + [False] * 2] * 3


def test_other_shapes_are_rejected() -> None:
    kernels = PagedKernels(PagedShape(heads=4, kv_heads=2, head_dim=16, block_size=8))
    cache = torch.zeros(9, 2, 2, 8, 16)
    slots = torch.zeros(3, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"kv of shape \[3, 48\]"):
        kernels.write(slots, torch.zeros(3, 48), cache)
    with pytest.raises(ValueError, match="float64"):
        kernels.write(slots, torch.zeros(3, 64, dtype=torch.float64), cache)
    with pytest.raises(ValueError, match="cache of shape"):
        kernels.write(slots, torch.zeros(3, 64), cache.transpose(0, 1))
    angles = torch.zeros(3, 1, 16)
    with pytest.raises(ValueError, match=r"qkv of shape \[3, 64\]"):
        kernels.rotate_and_write(slots, torch.zeros(3, 64), angles, angles, cache)
    with pytest.raises(ValueError, match=r"angles of shape \[2, 1, 16\]"):
        kernels.rotate_and_write(slots, torch.zeros(3, 128), angles[:2], angles, cache)
    with pytest.raises(ValueError, match=r"angles of shape \[3, 1, 16\], torch.float64"):
        kernels.rotate_and_write(slots, torch.zeros(3, 128), angles, angles.double(), cache)
