"""The write kernel puts K and V into the places of the step's tokens, and changes no other."""

import pytest
import torch

from kvasir.kernels.triton.paged_kernels import PagedKernels
from kvasir.kernels.triton.tiling import PagedShape


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
