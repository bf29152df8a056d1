import pytest
import torch
from torch import nn

from kvasir.layers import linear_method
from kvasir.layers.linear_method import PackedMethod, rows_for_one, unquantised_method
from kvasir.layers.parameter import Placement

BFLOAT16 = Placement(torch.device("cpu"), torch.bfloat16)


@pytest.mark.parametrize("equal_rows", [1, 4])
@torch.inference_mode()
def test_a_packed_weight_gives_the_product(equal_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    method, layer = unquantised_method(BFLOAT16), nn.Module()
    if not isinstance(method, PackedMethod):
        pytest.skip("this processor has no fast products of bfloat16")
    weight, bias = torch.randn(48, 96).bfloat16(), torch.randn(48).bfloat16()
    layer.weight = nn.Parameter(weight.clone(), requires_grad=False)
    method.finish(layer)
    assert rows_for_one() in (1, 4)
    monkeypatch.setattr(linear_method, "rows_for_one", lambda: equal_rows)
    for rows in (1, 2, 5):
        x = torch.randn(rows, 96).bfloat16()
        expected = x.double() @ weight.double().T + bias.double()
        torch.testing.assert_close(method.apply(layer, x, bias).double(), expected, rtol=2e-2, atol=2e-2)
