"""The adapters' kernels add the products of each row's slot, under Triton's interpreter."""

import pytest
import torch

from kvasir.kernels.triton.adapters.adapter_products import add_products_, rows_by_slot


def numbers(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("slots", "tokens", "inputs", "ranks", "outputs"),
    [(1, 1, 16, 4, 16), (3, 7, 72, 48, 100), (4, 40, 130, 16, 64), (2, 70, 33, 9, 17)],
)
def test_each_row_gets_the_product_of_its_slot(
    dtype: torch.dtype, slots: int, tokens: int, inputs: int, ranks: int, outputs: int
) -> None:
    x = numbers(tokens, inputs + 3, dtype=dtype, seed=1)[:, :inputs]
    down, up = (
        numbers(slots, ranks, inputs, dtype=dtype, seed=2),
        numbers(slots, outputs, ranks, dtype=dtype, seed=3),
    )
    before = numbers(tokens, outputs, dtype=dtype, seed=4)
    chosen = torch.arange(tokens) % (slots + 1) - 1
    chosen[0] = 0
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    out = before.clone()
    add_products_(out, x, down, up, *rows_by_slot(chosen, slots, dtype))
    for slot in range(slots):
        rows = chosen == slot
        wanted = before[rows].float() + x[rows].float() @ down[slot].float().T @ up[slot].float().T
        scale = float(wanted.abs().max()) if rows.any() else 1.0
        assert torch.allclose(out[rows].float(), wanted, atol=scale * tolerance)
    assert torch.equal(out[chosen < 0], before[chosen < 0])


def test_a_step_without_adapters_changes_nothing() -> None:
    out, x = torch.ones(5, 8), torch.ones(5, 8)
    chosen = torch.full((5,), -1)
    add_products_(out, x, torch.ones(2, 4, 8), torch.ones(2, 8, 4), *rows_by_slot(chosen, 2, out.dtype))
    assert torch.equal(out, torch.ones(5, 8))
