"""The weighted results of a token's experts are added up in the order of its scores, with torch's roundings."""

import pytest
import torch

from kvasir.kernels.triton.experts.expert_kernels import ExpertKernels
from kvasir.kernels.triton.experts.expert_tiling import SUM_COLUMNS, SUM_OPTIONS, ExpertShape, Gate
from runtime.kernels.triton.experts.expert_case import CPU

KERNELS = ExpertKernels(ExpertShape(4, 16, 8), range(4), 4, Gate("silu"), CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [16, SUM_COLUMNS + 24])
@pytest.mark.parametrize(("tokens", "top_k"), [(0, 2), (1, 1), (5, 3), (3, 8)])
def test_parts_are_added_in_their_order(tokens: int, top_k: int, size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(top_k)
    parts = torch.randn(tokens, top_k, size, generator=generator).to(dtype)
    weights = torch.rand(tokens, top_k, generator=generator)
    expected = torch.zeros(tokens, size)
    for number in range(top_k):
        expected += parts[:, number].float() * weights[:, number, None]
    assert torch.equal(KERNELS.weighted_sum(parts, weights), expected)


def test_products_are_not_fused_with_sums() -> None:
    assert SUM_OPTIONS == {"enable_fp_fusion": False}


def test_other_weights_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"weights of shape \[3, 3\]"):
        KERNELS.weighted_sum(torch.zeros(3, 2, 16), torch.zeros(3, 3))
    with pytest.raises(ValueError, match="float16"):
        KERNELS.weighted_sum(torch.zeros(3, 2, 16), torch.zeros(3, 2).half())
