from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kvasir.kernels.triton.quantised import weight_product
from kvasir.kernels.triton.quantised.weight_product import KernelProduct
from kvasir.kernels.triton.quantised.weight_tiling import half_step
from kvasir.layers.parameter import Placement
from kvasir.layers.quantised import device_product
from kvasir.layers.quantised.device_product import ScaledProduct
from kvasir.layers.quantised.weight import QuantisedWeight

KINDS = ("int8", "fp8", "int4", "minima4", "signed4", "table4")
OUTPUTS = 37  # do not fill the last program
CPU = torch.device("cpu")


def quantised(kind: str, inputs: int, group: int, seed: int = 0) -> QuantisedWeight:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.rand(OUTPUTS, inputs // group, generator=generator) * 0.1 + 0.01
    if kind == "int8":
        numbers = torch.randint(-128, 128, (OUTPUTS, inputs), generator=generator, dtype=torch.int8)
        return QuantisedWeight(numbers, scales)
    if kind == "fp8":
        return QuantisedWeight(torch.randn(OUTPUTS, inputs, generator=generator).to(torch.float8_e4m3fn), scales)
    numbers = torch.randint(0, 256, (OUTPUTS, inputs // 2), generator=generator, dtype=torch.uint8)
    zeros = torch.randint(0, 16, scales.shape, generator=generator, dtype=torch.uint8)
    table = torch.randn(16, generator=generator)
    of_kind = {"int4": zeros, "minima4": torch.rand(scales.shape, generator=generator) * 20 - 2}  # GGUF: floats
    return QuantisedWeight(numbers, scales, of_kind.get(kind), table if kind == "table4" else None)


def product_of(
    weight: QuantisedWeight, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype = torch.float32
) -> Callable[[Tensor], Tensor]:
    monkeypatch.setattr(device_product, "_KERNEL_DEVICE", "cpu")
    product = device_product.device_product(weight, Placement(CPU, dtype))
    assert product is not None
    return product


def assert_equals(weight: QuantisedWeight, x: Tensor, found: Tensor) -> None:
    rows = x if weight.order is None else x[:, weight.order]
    expected = rows.double() @ weight.dequantised(torch.float64).T
    tolerance = 1e-5 if x.dtype == torch.float32 else 2e-2
    assert (found.double() - expected).norm() <= tolerance * expected.norm()
    assert found.dtype == x.dtype


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("inputs", "group"), [(256, 32), (384, 128), (192, 192), (64, 16), (512, 256)])
def test_product_equals_the_dequantised_weight(
    kind: str, inputs: int, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = quantised(kind, inputs, group)
    product = product_of(weight, monkeypatch)
    monkeypatch.setattr(weight_product, "MAX_TILED_ROWS", 3)
    for rows in (0, 1, 3, 5):
        x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows))
        assert_equals(weight, x, product(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_multiplied_in_float32(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = quantised("int4", 256, 64)
    product = product_of(weight, monkeypatch, dtype)
    for rows in (1, 2):
        x = torch.randn(rows, 256, generator=torch.Generator().manual_seed(rows)).to(dtype)
        assert_equals(weight, x, product(x))


def test_large_weights_are_computed_by_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = quantised("int8", 64, 64)
    product = product_of(weight, monkeypatch)
    monkeypatch.setattr(weight_product, "MAX_TILED_ROWS", 16)
    monkeypatch.setattr(weight_product, "MAX_COPY_BYTES", OUTPUTS * 64 * 4 - 1)
    monkeypatch.setattr(KernelProduct, "_floats", None)
    x = torch.randn(17, 64)
    assert_equals(weight, x, product(x))


def test_inputs_are_taken_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = quantised("signed4", 128, 32)
    weight = QuantisedWeight(plain.numbers, plain.scales, order=torch.randperm(128))
    x = torch.randn(2, 128)
    assert_equals(weight, x, product_of(weight, monkeypatch)(x))


def test_every_float8_has_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.arange(256, dtype=torch.uint8)
    numbers = torch.where(numbers & 0x7F == 0x7F, 0, numbers).view(torch.float8_e4m3fn)  # without NaN
    weight = QuantisedWeight(numbers.repeat(OUTPUTS, 1), torch.ones(OUTPUTS, 1))
    monkeypatch.setattr(weight_product, "MAX_TILED_ROWS", 0)
    found = product_of(weight, monkeypatch)(torch.eye(256))
    assert torch.equal(found, numbers.float()[:, None].expand(256, OUTPUTS))


@pytest.mark.parametrize(("inputs", "group"), [(96, 96), (100, 100), (256, 8), (384, 24)])
def test_sizes_without_a_kernel_have_no_product(inputs: int, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_product, "_KERNEL_DEVICE", "cpu")
    weight = quantised("int8", inputs, group)
    assert half_step(inputs, group, 4) is None
    assert device_product.device_product(weight, Placement(CPU, torch.float32)) is None


def test_other_shapes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    product = product_of(quantised("int8", 64, 64), monkeypatch)
    with pytest.raises(ValueError, match="does not multiply"):
        product(torch.randn(2, 32))


def test_scaled_product_rounds_rows_to_float8() -> None:
    weight = QuantisedWeight(torch.randn(32, 64).to(torch.float8_e4m3fn), torch.rand(32, 1) + 0.1)
    x = torch.randn(3, 64).bfloat16() * torch.tensor([[1e-6], [1.0], [1e4]]).bfloat16()
    expected = x.double() @ weight.dequantised(torch.float64).T
    errors = (ScaledProduct(weight)(x).double() - expected).norm(dim=1) / expected.norm(dim=1)
    assert (errors <= 0.06).all()  # float8 has 4 significant bits
    assert torch.equal(ScaledProduct(weight)(torch.zeros(1, 64).bfloat16()), torch.zeros(1, 32).bfloat16())
