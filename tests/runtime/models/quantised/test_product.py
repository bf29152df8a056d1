"""Products with quantised weights keep what the engine promises."""

import pytest
import torch

from kvasir.kernels.cpu import kernels_for
from kvasir.layers.parameter import Placement
from kvasir.layers.quantised.packings.on_load_packing import quantised_int4, quantised_int8
from kvasir.layers.quantised.product import new_product
from kvasir.layers.quantised.weight import QuantisedWeight

CPU = torch.device("cpu")


@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_has_the_same_bits_in_any_batch(bits: int) -> None:
    if kernels_for(CPU, torch.float32) is None:
        pytest.skip("there are no kernels for this machine's CPU: plain torch computes")
    draw = torch.Generator().manual_seed(2)
    floats, x = torch.randn(96, 256, generator=draw), torch.randn(40, 256, generator=draw)
    weight = QuantisedWeight(*(quantised_int8(floats) if bits == 8 else quantised_int4(floats, 64)))
    product = new_product(weight, Placement(CPU, torch.float32, batch_invariant=True))
    together = product(x)
    for rows in (slice(7, 8), slice(3, 9), slice(20, 40)):
        assert torch.equal(product(x[rows]), together[rows])
