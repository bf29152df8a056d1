import pytest
import torch
import torch.nn.functional as F

from kvasir.kernels.cpu import kernels_for
from kvasir.kernels.cpu.packed_product import PackedProduct
from kvasir.layers.parameter import Placement
from kvasir.layers.quantised import product
from kvasir.layers.quantised.product import DequantisedProduct, new_product
from kvasir.layers.quantised.weight import QuantisedWeight

CPU = torch.device("cpu")


def weight_of(inputs: int, outputs: int = 40) -> QuantisedWeight:
    numbers = torch.randint(-128, 128, (outputs, inputs)).to(torch.int8)
    return QuantisedWeight(numbers, torch.rand(outputs, 1), order=torch.randperm(inputs))


def test_new_product_falls_back_for_odd_sizes_and_float16() -> None:
    if kernels_for(CPU, torch.float32) is None:
        pytest.skip("there are no kernels for this machine's CPU")
    assert isinstance(new_product(weight_of(64), Placement(CPU, torch.float32)), PackedProduct)
    assert isinstance(new_product(weight_of(36), Placement(CPU, torch.float32)), DequantisedProduct)
    assert isinstance(new_product(weight_of(64), Placement(CPU, torch.float16)), DequantisedProduct)
    assert isinstance(
        new_product(weight_of(64), Placement(torch.device("meta"), torch.float32)), DequantisedProduct
    )


@pytest.mark.parametrize("inputs", [64, 36])
def test_new_product_multiplies_the_ordered_inputs(inputs: int) -> None:
    weight, x = weight_of(inputs), torch.randn(5, inputs)
    expected = F.linear(x[:, weight.order], weight.dequantised(torch.float32))
    out = new_product(weight, Placement(CPU, torch.float32))(x)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-3)


def test_dequantised_product_holds_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = weight_of(36), torch.randn(5, 36)
    whole = DequantisedProduct(weight)(x)
    sizes: list[int] = []
    dequantised = QuantisedWeight.dequantised

    def watched(part: QuantisedWeight, dtype: torch.dtype) -> torch.Tensor:
        sizes.append(part.outputs)
        return dequantised(part, dtype)

    monkeypatch.setattr(QuantisedWeight, "dequantised", watched)
    monkeypatch.setattr(product, "MAX_DEQUANTISED_NUMBERS", 36 * 7)
    torch.testing.assert_close(DequantisedProduct(weight)(x), whole, rtol=1e-5, atol=1e-4)
    assert sizes == [7, 7, 7, 7, 7, 5]


def test_new_product_is_batch_invariant_without_packing() -> None:
    if kernels_for(CPU, torch.float32) is None:
        pytest.skip("there are no kernels for this machine's CPU")
    multiply = new_product(weight_of(1500, outputs=100), Placement(CPU, torch.float32, batch_invariant=True))
    assert isinstance(multiply, DequantisedProduct)
    x = torch.randn(33, 1500)
    assert torch.equal(multiply(x)[3:4], multiply(x[3:4]))
