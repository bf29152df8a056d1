import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvasir.kernels.fused_operations import Activation
from kvasir.kernels.triton.fused_kernels import TritonOperations
from kvasir.kernels.triton.fused_tiling import MAX_NORM_NUMBERS, norm_tile
from kvasir.layers.activation import ACTIVATIONS, gated_reference
from kvasir.layers.norm import OffsetRMSNorm, RMSNorm
from kvasir.layers.parameter import Placement
from kvasir.layers.rotary import LinearScaling, Rope, RotaryEmbedding, Rotation, rotate_reference_
from runtime.kernels.triton.rounding import assert_rounded_once

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
EPS = 1e-5
SIZES = (64, 80, 896, 2880)
"""A power of two, and sizes that a program pads."""

pytestmark = pytest.mark.usefixtures("nearest")


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param  # type: ignore[no-any-return]


def numbers(*shape: int, dtype: torch.dtype, seed: int = 7, scale: float = 2.0) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def operations(dtype: torch.dtype) -> TritonOperations:
    return TritonOperations(CPU, dtype)


def norm(kind: type[RMSNorm], size: int, dtype: torch.dtype) -> tuple[RMSNorm, tuple[Tensor, float, float]]:
    """The layer, and the arguments of its operation after x."""
    layer = kind(size, EPS, Placement(CPU, dtype))
    layer.weight.data = numbers(size, dtype=dtype, seed=size, scale=0.5)
    return layer, (layer.weight, EPS, layer.shift)


def assert_norm(found: Tensor, layer: RMSNorm, x: Tensor) -> None:
    """The reference rounds to the type of its argument. A weight near -1 and the shift cancel."""
    exact, weight = layer.reference(x.double()), layer.weight.data
    layer.weight.data = weight.abs()
    terms = layer.reference(x.double())
    layer.weight.data = weight
    assert_rounded_once(found, exact, terms)


@pytest.mark.parametrize("kind", [RMSNorm, OffsetRMSNorm])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tokens", [1, 7])
@torch.inference_mode()
def test_a_norm_is_rounded_once(tokens: int, size: int, kind: type[RMSNorm], dtype: torch.dtype) -> None:
    layer, arguments = norm(kind, size, dtype)
    x = numbers(tokens, size, dtype=dtype)
    before = x.clone()
    assert_norm(operations(dtype).rms_norm(x, *arguments), layer, x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tokens", [1, 33])
@torch.inference_mode()
def test_a_sum_is_rounded_before_its_norm(tokens: int, size: int, dtype: torch.dtype) -> None:
    layer, arguments = norm(OffsetRMSNorm, size, dtype)
    x, added = numbers(tokens, size, dtype=dtype), numbers(tokens, size + 16, dtype=dtype, seed=8)[:, :size]
    total = x + added
    result = operations(dtype).add_rms_norm_(x, added, *arguments)
    assert torch.equal(x, total)
    assert_norm(result, layer, total)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("size", [64, 80, 128])
@torch.inference_mode()
def test_heads_are_normalised_where_they_lie(size: int, heads: int, dtype: torch.dtype) -> None:
    layer, arguments = norm(RMSNorm, size, dtype)
    qkv = numbers(11, 6 * size, dtype=dtype)
    view, expected = qkv.unflatten(1, (6, size))[:, 2 : 2 + heads], qkv.clone()
    before = view.clone()
    assert_norm(operations(dtype).rms_norm(view, *arguments), layer, before)
    operations(dtype).rms_norm_(view, *arguments)
    assert_norm(view, layer, before)
    expected.unflatten(1, (6, size))[:, 2 : 2 + heads] = view
    assert torch.equal(qkv, expected), "numbers of other heads changed"


@torch.inference_mode()
def test_a_norm_of_large_and_small_numbers_is_finite(dtype: torch.dtype) -> None:
    layer, arguments = norm(RMSNorm, 64, dtype)
    x = torch.zeros(3, 64, dtype=dtype)
    x[1], x[2] = torch.finfo(dtype).max / 2 if dtype == torch.float16 else 1e15, 1e-7
    assert_norm(operations(dtype).rms_norm(x, *arguments), layer, x)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("name", ["silu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("size", [*SIZES, 1024, 1500])
@torch.inference_mode()
def test_a_gated_activation_is_rounded_once(size: int, name: str, dtype: torch.dtype) -> None:
    x = numbers(5, 2 * size, dtype=dtype, scale=3.0)
    activation = Activation.SILU if name == "silu" else Activation.GELU_TANH
    exact = gated_reference(x.double(), ACTIVATIONS[name])
    assert_rounded_once(operations(dtype).gate(x, activation), exact)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@torch.inference_mode()
def test_gates_far_out_are_as_in_torch(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    gate = torch.tensor([-largest, -200.0, -89.0, 0.0, 89.0, 200.0, largest, torch.nan], dtype=dtype)
    x = torch.cat((gate, torch.ones_like(gate)))[None]
    for activation, reference in ((Activation.SILU, F.silu), (Activation.GELU_TANH, ACTIVATIONS["gelu_new"])):
        out = operations(dtype).gate(x, activation)
        expected = gated_reference(x.double(), reference).to(dtype)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-30, equal_nan=True)


def rotation(dim: int, tokens: int, dtype: torch.dtype) -> Rotation:
    rotary = RotaryEmbedding(Rope(dim, 10000.0, LinearScaling(2.0)), 4096, CPU)
    return rotary.rotation(torch.arange(tokens) * 37, dtype)


@pytest.mark.parametrize(("head_dim", "dim"), [(64, 64), (80, 80), (80, 32), (96, 72), (128, 128), (16, 8)])
@pytest.mark.parametrize("heads", [1, 5, 19])
@torch.inference_mode()
def test_a_rotation_is_rounded_once(heads: int, head_dim: int, dim: int, dtype: torch.dtype) -> None:
    turn = rotation(dim, 3, dtype)
    qkv = numbers(3, (heads + 2) * head_dim, dtype=dtype)
    before = qkv.clone()
    exact, terms = before.double(), before.double().abs()
    rotate_reference_(exact.unflatten(1, (-1, head_dim))[:, :heads], Rotation(turn.cos.double(), turn.sin.double()))
    rotate_reference_(
        terms.unflatten(1, (-1, head_dim))[:, :heads], Rotation(turn.cos.double().abs(), turn.sin.double().abs())
    )
    operations(dtype).rotate_(qkv[:, : heads * head_dim].unflatten(1, (heads, head_dim)), turn.cos, turn.sin)
    assert_rounded_once(qkv, exact, terms)
    unturned = qkv.unflatten(1, (-1, head_dim))[..., dim:], before.unflatten(1, (-1, head_dim))[..., dim:]
    assert torch.equal(*unturned)
    assert torch.equal(qkv[:, heads * head_dim :], before[:, heads * head_dim :])


@given(
    tokens=st.integers(0, 5),
    heads=st.integers(1, 9),
    half=st.integers(1, 40),
    rest=st.integers(0, 5),
    seed=st.integers(0, 99),
)
@settings(max_examples=15, deadline=None, derandomize=True)
@torch.inference_mode()
def test_any_shape_gives_the_references(tokens: int, heads: int, half: int, rest: int, seed: int) -> None:
    size, fused = 2 * half + rest, operations(torch.float32)
    x = numbers(tokens, heads + 1, size, dtype=torch.float32, seed=seed)[:, 1:]
    layer, arguments = norm(RMSNorm, size, torch.float32)
    torch.testing.assert_close(fused.rms_norm(x, *arguments), layer.reference(x), rtol=1e-5, atol=1e-6)
    pairs = x.flatten(1)[:, : heads * size // 2 * 2]
    silu = gated_reference(pairs, F.silu)
    torch.testing.assert_close(fused.gate(pairs, Activation.SILU), silu, rtol=1e-5, atol=1e-6)
    turn = rotation(2 * half, tokens, torch.float32)
    expected = x.clone()
    rotate_reference_(expected, turn)
    fused.rotate_(x, turn.cos, turn.sin)
    torch.testing.assert_close(x, expected, rtol=1e-5, atol=1e-6)


def test_rows_that_exceed_a_program_are_not_taken() -> None:
    fused = operations(torch.bfloat16)
    assert fused.takes_norm(MAX_NORM_NUMBERS)
    assert not fused.takes_norm(MAX_NORM_NUMBERS + 16)
    assert norm_tile(MAX_NORM_NUMBERS, 32).num_warps == 16
    assert norm_tile(MAX_NORM_NUMBERS, 64).num_warps == 8


def test_other_shapes_and_types_are_rejected(dtype: torch.dtype) -> None:
    fused, x = operations(dtype), numbers(4, 64, dtype=dtype)
    other = x.double()
    with pytest.raises(TypeError, match=f"takes {dtype}"):
        fused.rms_norm(other, x[0], EPS, 0.0)
    with pytest.raises(TypeError, match=f"takes {dtype}"):
        fused.add_rms_norm_(x, other, x[0], EPS, 0.0)
    with pytest.raises(ValueError, match="weight of shape"):
        fused.rms_norm(x, x[0, :32], EPS, 0.0)
    with pytest.raises(ValueError, match="added of shape"):
        fused.add_rms_norm_(x, x[:2], x[0], EPS, 0.0)
    with pytest.raises(ValueError, match="x of shape"):
        fused.rms_norm_(x.view(4, 4, 16).transpose(1, 2), x[0, :4], EPS, 0.0)
    with pytest.raises(ValueError, match="x of shape"):
        fused.gate(x[:, :63], Activation.SILU)
    with pytest.raises(ValueError, match="x of shape"):
        fused.gate(x.T, Activation.SILU)
    turn = rotation(32, 4, dtype)
    with pytest.raises(ValueError, match="x of shape"):
        fused.rotate_(x.view(4, 4, 16), turn.cos, turn.sin)
    with pytest.raises(ValueError, match="cos or sin of shape"):
        fused.rotate_(x.view(4, 2, 32), turn.cos[:3], turn.sin)
