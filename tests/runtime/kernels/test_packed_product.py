from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kvasir.kernels import cpu
from kvasir.kernels.cpu.packed_product import PackedProduct
from kvasir.layers.quantised.weight import QuantisedWeight

DTYPES = (torch.float32, torch.bfloat16)
ROWS = (1, 2, 3, 4, 5, 8, 13, 129)  # few, widened, and more than a chunk
RANDOM = torch.Generator().manual_seed(11)


@pytest.fixture(params=cpu.supported_levels(), scope="module")
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def product(level: str, dtype: torch.dtype, weight: QuantisedWeight) -> PackedProduct:
    fields = (weight.numbers, weight.scales, weight.zeros, weight.table, weight.order, weight.quantise_inputs)
    return PackedProduct(cpu.load(level)[dtype], *fields)


def integers(low: int, high: int, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randint(low, high, shape, generator=RANDOM).to(dtype)


def weight_of(
    numbers: torch.dtype, outputs: int, inputs: int, group: int, *, scales: torch.dtype = torch.float16
) -> QuantisedWeight:
    of_scales = torch.rand(outputs, inputs // group, generator=RANDOM).add(0.1).to(scales).float()
    if numbers == torch.uint8:
        return QuantisedWeight(integers(0, 256, outputs, inputs // 2, dtype=numbers), of_scales)
    if numbers == torch.int8:
        return QuantisedWeight(integers(-128, 128, outputs, inputs, dtype=numbers), of_scales)
    every = torch.arange(outputs * inputs).reshape(outputs, inputs).to(torch.uint8)
    finite = torch.where(every & 127 == 127, 0, every)
    return QuantisedWeight(finite.view(numbers), of_scales)


def int4(group: int, zeros: bool = False, table: bool = False, inputs: int = 384) -> QuantisedWeight:
    weight = weight_of(torch.uint8, 150, inputs, group)
    return replace(
        weight,
        zeros=integers(0, 16, *weight.scales.shape, dtype=torch.uint8) if zeros else None,
        table=torch.randn(16, generator=RANDOM).bfloat16().float() if table else None,
    )


def with_float_zeros(group: int, dtype: torch.dtype = torch.float32) -> QuantisedWeight:
    weight = weight_of(torch.uint8, 150, 384, group, scales=torch.float32)
    zeros = torch.rand(weight.scales.shape, generator=RANDOM) * 20 - 2  # GGUF: minimum / scale
    return replace(weight, zeros=8 + (zeros - 8).to(dtype).float())


WEIGHTS = {
    "int8 by output": weight_of(torch.int8, 150, 384, 384),
    "int8 by group": weight_of(torch.int8, 150, 384, 32, scales=torch.float32),
    "float8 by output": weight_of(torch.float8_e4m3fn, 150, 384, 384, scales=torch.bfloat16),
    "float8 by group": weight_of(torch.float8_e4m3fn, 150, 384, 128),
    "int4 by output": int4(384),
    "int4 by group": int4(128),
    "int4 with zeros": int4(64, zeros=True),
    "int4 with one zero": int4(384, zeros=True),
    "int4 by groups of two blocks": int4(192, zeros=True),
    "int4 with float zeros": with_float_zeros(32),
    "int4 with float zeros by 16": with_float_zeros(16),
    "int4 with half zeros": with_float_zeros(64, torch.bfloat16),
    "int4 with a table": int4(32, table=True),
    "ordered": replace(int4(128), order=torch.randperm(384, generator=RANDOM)),
}
of_weight = pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS)


def assert_close(out: Tensor, x: Tensor, weight: QuantisedWeight) -> None:
    """The sums are float32, so their error is a part of the sum of magnitudes."""
    exact = weight.dequantised(torch.float32).double().T
    ordered = (x if weight.order is None else x[:, weight.order]).double()
    bound = 2.0**-21 * (ordered.abs() @ exact.abs())
    if x.dtype == torch.bfloat16:
        bound += 2.0**-8 * (ordered @ exact).abs()
    assert ((out.double() - ordered @ exact).abs() <= bound).all()


@of_weight
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packed_product_matches_dequantised(level: str, dtype: torch.dtype, weight: QuantisedWeight) -> None:
    x = torch.randn(130, weight.inputs, generator=RANDOM).to(dtype)
    multiply = product(level, dtype, weight)
    whole = multiply(x)
    assert_close(whole, x, weight)
    for rows in ROWS:  # other tiles compute the same bits
        assert torch.equal(multiply(x[-rows:]), whole[-rows:])


@pytest.mark.parametrize("kind", ["int4 with zeros", "int4 with float zeros"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packed_bits_do_not_depend_on_threads(level: str, dtype: torch.dtype, kind: str, threads: None) -> None:
    weight = WEIGHTS[kind]
    multiply = product(level, dtype, weight)
    x = torch.randn(130, weight.inputs, generator=torch.Generator().manual_seed(5)).to(dtype)
    out, whole = multiply(x), torch.get_num_threads()
    torch.set_num_threads(1)
    assert torch.equal(out, multiply(x))
    torch.set_num_threads(whole)


@pytest.mark.parametrize("outputs", [1, 32, 33, 64, 65])
@pytest.mark.parametrize("inputs", [16, 272])
def test_packed_product_of_any_size(level: str, outputs: int, inputs: int) -> None:
    for numbers in (torch.uint8, torch.int8, torch.float8_e4m3fn):
        weight = weight_of(numbers, outputs, inputs, inputs)
        for dtype in DTYPES:
            x = torch.randn(14, inputs, generator=RANDOM).to(dtype)
            assert_close(product(level, dtype, weight)(x), x, weight)
            assert_close(product(level, dtype, weight)(x[:2]), x[:2], weight)


def quantised_reference(x: Tensor, weight: QuantisedWeight) -> Tensor:
    """Return the product with int8 activations by its formula."""
    scales = x.float().abs().amax(1, keepdim=True) / 127
    numbers = torch.where(scales > 0, torch.round(x.float() / scales), 0).long()
    return (numbers @ weight.numbers.long().T).float() * weight.scales.T * scales


@pytest.mark.parametrize("rows", ROWS)
def test_int8_inputs_have_exact_sums(level: str, rows: int) -> None:
    weight = replace(weight_of(torch.int8, 100, 1024, 1024), quantise_inputs=True)
    x = torch.randn(rows, weight.inputs, generator=RANDOM)
    x[0] = 0
    assert torch.equal(product(level, torch.float32, weight)(x), quantised_reference(x, weight))
    x = x.bfloat16()
    assert torch.equal(product(level, torch.bfloat16, weight)(x), quantised_reference(x, weight).bfloat16())


def test_int8_inputs_times_groups(level: str) -> None:
    grouped = replace(weight_of(torch.int8, 70, 256, 32), quantise_inputs=True)
    x = torch.randn(9, grouped.inputs, generator=RANDOM)
    numbers = torch.round(x / (x.abs().amax(1, keepdim=True) / 127))
    out = product(level, torch.float32, grouped)(x)
    expected = numbers @ grouped.dequantised(torch.float32).T * (x.abs().amax(1, keepdim=True) / 127)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_int8_inputs_that_are_not_finite_give_nan(level: str, bad: float) -> None:
    weight = replace(weight_of(torch.int8, 40, 64, 64), quantise_inputs=True)
    x = torch.ones(3, 64)
    x[1, 5] = bad
    out = product(level, torch.float32, weight)(x)
    assert out[1].isnan().all()
    assert out[0].isfinite().all()
    assert torch.equal(out[0], out[2])


def test_packed_product_of_no_rows_is_empty(level: str) -> None:
    assert product(level, torch.float32, WEIGHTS["int4 by group"])(torch.zeros(0, 384)).shape == (0, 150)


def test_packed_product_refuses_what_it_cannot_read(level: str) -> None:
    multiply = product(level, torch.float32, WEIGHTS["int4 by group"])
    with pytest.raises(TypeError, match=r"takes torch\.float32, not torch\.bfloat16"):
        multiply(torch.zeros(1, 384, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=r"x of shape \[1, 383\] with 384 inputs"):
        multiply(torch.zeros(1, 383))
    for inputs, group in ((8, 8), (36, 36), (96, 12)):
        with pytest.raises(ValueError, match="does not take"):
            product(level, torch.float32, weight_of(torch.int8, 5, inputs, group))
    nan = torch.full((1, 32), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="NaN"):
        product(level, torch.float32, QuantisedWeight(nan, torch.ones(1, 1)))


def test_packed_product_refuses_fields_that_do_not_fit(level: str) -> None:
    weight = WEIGHTS["int4 with zeros"]
    assert weight.zeros is not None
    wrong: dict[str, Any] = {
        "scales": weight.scales[1:],
        "zeros": weight.zeros[:, 1:],
        "table": torch.zeros(15),
        "order": torch.arange(1, weight.inputs + 1),
    }
    for name, tensor in wrong.items():
        with pytest.raises(ValueError, match="do not fit"):
            product(level, torch.float32, replace(weight, **{name: tensor}))
