"""The product of a few rows under Triton's interpreter: the same as norm, product and activation one by one."""

import pytest
import torch
from torch import Tensor

from kvasir.kernels.fused_operations import Activation
from kvasir.kernels.triton.few_rows import row_products
from kvasir.kernels.triton.few_rows.row_products import RowNorm, add_product_, product
from kvasir.kernels.triton.row_tiling import RowTile
from kvasir.layers.activation import ACTIVATIONS, gated_reference

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TOLERANCES = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Relative to the norm of the result. The interpreter truncates the results in bfloat16."""
NORMS = {Activation.SILU: "silu", Activation.GELU_TANH: "gelu_pytorch_tanh"}


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of more than one tile, and outputs that do not fill the last program."""
    monkeypatch.setattr(row_products, "row_tile", lambda *sizes, **form: RowTile(4, 64, 4, 1))


def numbers(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def normalised(x: Tensor, norm: RowNorm) -> Tensor:
    exact = x.double()
    unit = exact / (exact.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return unit * (norm.weight.double() + norm.shift)


def assert_near(found: Tensor, expected: Tensor) -> None:
    assert found.dtype in DTYPES
    error = (found.double() - expected).norm() / expected.norm()
    assert error <= TOLERANCES[found.dtype], float(error)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shift", [None, 0.0, 1.0])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 128, 16), (3, 80, 21)])
def test_a_normalised_row_is_multiplied(
    rows: int, inputs: int, outputs: int, shift: float | None, biased: bool, dtype: torch.dtype
) -> None:
    x = numbers(rows, inputs + 16, dtype=dtype, seed=1)[:, :inputs]  # rows lie apart
    weight, bias = numbers(outputs, inputs, dtype=dtype, seed=2), numbers(outputs, dtype=dtype, seed=3)
    norm = None if shift is None else RowNorm(numbers(inputs, dtype=dtype, seed=4), 1e-2, shift)
    expected = (x.double() if norm is None else normalised(x, norm)) @ weight.double().T
    found = product(x, weight, bias if biased else None, norm=norm)
    assert_near(found, expected + bias.double() if biased else expected)


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("biased", [False, True])
def test_a_gate_is_activated_and_multiplied(activation: Activation, biased: bool, dtype: torch.dtype) -> None:
    x, weight = numbers(2, 80, dtype=dtype, seed=1), numbers(2 * 21, 80, dtype=dtype, seed=2)
    bias = numbers(2 * 21, dtype=dtype, seed=3) if biased else None
    norm = RowNorm(numbers(80, dtype=dtype, seed=4), 1e-2, 0.0)
    inner = normalised(x, norm) @ weight.double().T
    if bias is not None:
        inner += bias.double()
    expected = gated_reference(inner.to(dtype).double(), ACTIVATIONS[NORMS[activation]])
    assert_near(product(x, weight, bias, norm=norm, activation=activation), expected)


@pytest.mark.parametrize("biased", [False, True])
def test_a_product_is_added_to_the_residual_stream(biased: bool, dtype: torch.dtype) -> None:
    x, weight = numbers(2, 80, dtype=dtype, seed=1), numbers(21, 80, dtype=dtype, seed=2)
    total, bias = numbers(2, 32, dtype=dtype, seed=5)[:, :21], numbers(21, dtype=dtype, seed=3)
    expected = total.double() + x.double() @ weight.double().T + (bias.double() if biased else 0)
    add_product_(total, x, weight, bias if biased else None)
    assert_near(total, expected)


def test_other_shapes_and_types_are_refused() -> None:
    x, weight = numbers(2, 80, dtype=torch.float32, seed=1), numbers(21, 80, dtype=torch.float32, seed=2)
    with pytest.raises(ValueError, match="does not multiply"):
        product(x, weight[:, :64], None)
    with pytest.raises(TypeError, match="contiguous weights"):
        product(x, weight.half(), None)
    with pytest.raises(TypeError, match="contiguous weights"):
        product(x[:, :64], weight[:, :64], None)
