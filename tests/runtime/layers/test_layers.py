import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN

from kvasir.layers.activation import ACTIVATIONS
from kvasir.layers.linear import Linear, pack_linears
from kvasir.layers.norm import RMSNorm
from kvasir.layers.parameter import Placement
from kvasir.layers.rotary import LinearScaling, Llama3Scaling, RopeScaling, RotaryEmbedding, rotate_

FLOAT32 = Placement(torch.device("cpu"), torch.float32)
BFLOAT16 = Placement(torch.device("cpu"), torch.bfloat16)


def randomise(layer: nn.Module) -> None:
    generator = torch.Generator().manual_seed(2)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 16, 100])
@torch.inference_mode()
def test_packing_changes_the_layout_and_not_the_product(rows: int, bias: bool) -> None:
    layer = Linear(96, {"a": 40, "b": 24}, bias=bias, placement=BFLOAT16)
    randomise(layer)
    x = torch.randn(rows, 96).bfloat16()
    plain = layer(x)
    exact = F.linear(x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())
    pack_linears([layer], BFLOAT16)
    packed = layer(x)
    for product in (plain, packed):
        assert (product - exact).abs().max() <= 2**-8 * exact.abs().max()


@torch.inference_mode()
def test_packing_a_tied_weight_leaves_it_to_its_owner() -> None:
    owner = Linear(32, 64, bias=False, placement=BFLOAT16)
    randomise(owner)
    tied = Linear(32, 64, bias=False, placement=BFLOAT16, tied=owner.weight)
    x = torch.randn(4, 32).bfloat16()
    expected = owner(x)
    tied.pack()
    assert torch.equal(owner(x), expected)
    assert torch.allclose(tied(x).float(), expected.float(), rtol=2**-7, atol=2**-7)


@torch.inference_mode()
def test_float32_weights_are_not_packed() -> None:
    layer = Linear(32, 64, bias=False, placement=FLOAT32)
    pack_linears([layer], FLOAT32)
    assert dict(layer.named_parameters()).keys() == {"weight"}


@pytest.mark.parametrize("placement", [FLOAT32, BFLOAT16])
@torch.inference_mode()
def test_rms_norm_is_torchs_and_leaves_its_input(placement: Placement) -> None:
    layer = RMSNorm(48, 1e-5, placement)
    randomise(layer)
    x = torch.randn(5, 48).to(placement.dtype)
    before = x.clone()
    normalised = layer(x)
    assert torch.equal(x, before)
    expected = F.rms_norm(x.double(), (48,), layer.weight.double(), 1e-5)
    assert torch.allclose(normalised.double(), expected, rtol=torch.finfo(placement.dtype).eps * 2, atol=1e-6)


@pytest.mark.parametrize("scaling", [None, LinearScaling(4.0), Llama3Scaling(8.0, 1.0, 4.0, 64)])
@torch.inference_mode()
def test_rotated_scores_depend_on_the_distance_only(scaling: RopeScaling | None) -> None:
    rotary = RotaryEmbedding(32, 10000.0, scaling, torch.device("cpu"))
    q, k = torch.randn(1, 2, 32), torch.randn(1, 2, 32)

    def scores(query: int, key: int) -> torch.Tensor:
        a, b = q.clone(), k.clone()
        rotate_(a, rotary.rotation(torch.tensor([query]), torch.float32))
        rotate_(b, rotary.rotation(torch.tensor([key]), torch.float32))
        return (a * b).sum(-1)

    assert torch.allclose(scores(25, 14), scores(111, 100), atol=1e-3)
    assert not torch.allclose(scores(25, 14), scores(25, 15), atol=1e-3)
    assert torch.allclose(scores(0, 0), (q * k).sum(-1))


def test_activations_of_config_files() -> None:
    x = torch.linspace(-4, 4, 101)
    for name, activation in ACTIVATIONS.items():
        assert torch.allclose(activation(x.clone()), ACT2FN[name](x), atol=1e-6), name
