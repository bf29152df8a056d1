import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN

from kvasir.layers.activation import ACTIVATIONS
from kvasir.layers.linear import Linear, finish_layers
from kvasir.layers.moe.expert_routing import TopScores
from kvasir.layers.moe.sparse_moe import ExpertsConfig, SparseMoE
from kvasir.layers.norm import OffsetRMSNorm, RMSNorm
from kvasir.layers.parameter import Placement, weight_loader_of
from kvasir.layers.rotary import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    RopeScaling,
    RotaryEmbedding,
    YarnScaling,
    inverse_frequencies,
    rotate_,
)

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
    finish_layers([layer])
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
    finish_layers([tied])
    assert torch.equal(owner(x), expected)
    assert torch.allclose(tied(x).float(), expected.float(), rtol=2**-7, atol=2**-7)


@torch.inference_mode()
def test_float32_weights_are_not_packed() -> None:
    layer = Linear(32, 64, bias=False, placement=FLOAT32)
    finish_layers([layer])
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


@torch.inference_mode()
def test_a_weight_around_0_loses_nothing_of_itself_to_the_1() -> None:
    layer = OffsetRMSNorm(48, 1e-5, BFLOAT16)
    layer.weight.copy_(torch.full((48,), 1e-3))  # 1 + 1e-3 is 1 in bfloat16
    x = torch.randn(5, 48)
    unit = F.rms_norm(x.double(), (48,), eps=1e-5)
    assert torch.allclose(layer(x).double(), unit * (1 + layer.weight.double()), rtol=1e-5)


SCALINGS = [
    None,
    LinearScaling(4.0),
    Llama3Scaling(8.0, 1.0, 4.0, 64),
    YarnScaling(4.0, 64, 8.0, 1.0, truncate=True, attention_factor=1.0),
    LongRopeScaling((1.0,) * 12, (4.0,) * 12, 64, 1.0),
]


@pytest.mark.parametrize("scaling", SCALINGS)
@torch.inference_mode()
def test_rotated_scores_depend_on_the_distance_only(scaling: RopeScaling | None) -> None:
    rotary = RotaryEmbedding(Rope(24, 10000.0, scaling), 128, torch.device("cpu"))
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


def test_the_set_of_longrope_follows_the_longest_context() -> None:
    rope = Rope(4, 10000.0, LongRopeScaling((1.0, 1.0), (2.0, 4.0), 64, 1.0))
    assert inverse_frequencies(rope, 64).tolist() == pytest.approx([1, 1 / 100])
    assert inverse_frequencies(rope, 65).tolist() == pytest.approx([1 / 2, 1 / 400])


@pytest.mark.parametrize("renormalise", [False, True])
@torch.inference_mode()
def test_a_mixture_gives_each_token_its_experts_by_weight(renormalise: bool) -> None:
    config = ExpertsConfig(TopScores(6, 2, renormalise), 24)
    layer = SparseMoE(16, config, F.silu, Placement(torch.device("cpu"), torch.float32))
    randomise(layer)
    x = torch.randn(9, 16)
    out = layer(x)
    for token in range(9):
        weights, chosen = layer.gate(x[token]).softmax(dim=-1).topk(2)
        weights = weights / weights.sum() if renormalise else weights
        parts = []
        for weight, expert in zip(weights, chosen, strict=True):
            gate, up = (layer.experts.gate_up_proj.weight[expert] @ x[token]).chunk(2)
            parts.append(weight * (layer.experts.down_proj.weight[expert] @ (F.silu(gate) * up)))
        assert torch.allclose(out[token], parts[0] + parts[1], rtol=1e-4, atol=1e-3)
        assert torch.allclose(layer(x[token : token + 1])[0], out[token], rtol=1e-4, atol=1e-3)


def test_a_whole_tensor_fills_all_shards_and_only_once() -> None:
    layer = Linear(3, {"a": 2, "b": 4}, bias=False, placement=FLOAT32)
    load = weight_loader_of(layer.weight)
    load(layer.weight, torch.arange(18.0).view(6, 3), "")
    assert layer.weight.flatten().tolist() == list(range(18))
    assert not load.missing
    for shard, size in (("", 6), ("b", 4)):
        with pytest.raises(ValueError, match="loaded before"):
            load(layer.weight, torch.zeros(size, 3), shard)
