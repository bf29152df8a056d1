import ctypes
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir.kernels import cpu
from kvasir.kernels.cpu import Kernels, PagedStep, kernels_for
from kvasir.kernels.fused_operations import Activation
from kvasir.layers.activation import ACTIVATIONS, gated, gated_reference
from kvasir.layers.norm import OffsetRMSNorm, RMSNorm
from kvasir.layers.parameter import Placement
from kvasir.layers.rotary import LinearScaling, Rope, RotaryEmbedding, rotate_, rotate_reference_

pytestmark = pytest.mark.usefixtures("threads")

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16)
TOKENS = (1, 3, 16, 700)
"""One that a single thread does alone, and more than one does."""


@pytest.fixture(autouse=True, params=cpu.supported_levels(), scope="module")
def level(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every library that this machine can run."""
    loaded = cpu.load(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "_load", lambda: loaded)
        yield


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    kernels(request.param)
    return request.param  # type: ignore[no-any-return]


def kernels(dtype: torch.dtype) -> Kernels:
    found = kernels_for(CPU, dtype)
    if found is None:
        pytest.skip("there are no kernels for this machine's CPU: plain torch computes")
    return found


def numbers(*shape: int, dtype: torch.dtype, scale: float = 2.0) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(7)) * scale).to(dtype)


def assert_close(kernel: Tensor, reference: Tensor) -> None:
    """The kernels round once, torch after each operation; float32 sums hundreds of numbers."""
    assert kernel.dtype == reference.dtype
    bits = 7 if kernel.dtype == torch.bfloat16 else 17
    torch.testing.assert_close(kernel.float(), reference.float(), rtol=2.0 ** (1 - bits), atol=2.0 ** (1 - bits))


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("kind", [RMSNorm, OffsetRMSNorm])
@torch.inference_mode()
def test_rms_norm(kind: type[RMSNorm], tokens: int, dtype: torch.dtype) -> None:
    norm = kind(768, 1e-5, Placement(CPU, dtype))
    norm.weight.data = numbers(768, dtype=dtype)
    for x in (numbers(tokens, 768, dtype=dtype), numbers(tokens, 768, dtype=dtype, scale=1e-3)):
        assert_close(norm(x), norm.reference(x))


@torch.inference_mode()
def test_rms_norm_of_heads_that_lie_apart(dtype: torch.dtype) -> None:
    norm = RMSNorm(32, 1e-6, Placement(CPU, dtype))
    norm.weight.data = numbers(32, dtype=dtype)
    heads = numbers(9, 6 * 32, dtype=dtype).unflatten(1, (6, 32))[:, 2:5]
    assert_close(norm(heads), norm.reference(heads))


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("name", ["silu", "gelu_pytorch_tanh"])
@torch.inference_mode()
def test_gated(name: str, tokens: int, dtype: torch.dtype) -> None:
    x = numbers(tokens, 2 * 176, dtype=dtype, scale=5.0)
    assert_close(gated(x, ACTIVATIONS[name]), gated_reference(x, ACTIVATIONS[name]))


@torch.inference_mode()
def test_an_activation_without_a_kernel_is_computed_by_torch(dtype: torch.dtype) -> None:
    x = numbers(5, 64, dtype=dtype)
    assert torch.equal(gated(x, F.relu), gated_reference(x, F.relu))


@torch.inference_mode()
def test_gates_far_out_are_neither_infinite_nor_nan(dtype: torch.dtype) -> None:
    gate = torch.tensor([-1e30, -200.0, -89.0, -87.5, 87.5, 89.0, 200.0, 1e30] * 4, dtype=dtype)
    x = torch.cat((gate, torch.ones_like(gate)))[None]
    for name in ("silu", "gelu_pytorch_tanh"):
        out = gated(x, ACTIVATIONS[name])
        assert out.isfinite().all()
        assert torch.equal(out[0] > 1, gate > 0)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("dim", [32, 64])
@torch.inference_mode()
def test_rotate(dim: int, tokens: int, dtype: torch.dtype) -> None:
    rotary = RotaryEmbedding(Rope(dim, 10000.0, LinearScaling(2.0)), 4096, CPU)
    rotation = rotary.rotation(torch.arange(tokens) * 3, dtype)
    qkv = numbers(tokens, 7 * 64, dtype=dtype)
    expected = qkv.clone()
    rotate_(qkv[:, : 5 * 64].unflatten(1, (5, 64)), rotation)
    rotate_reference_(expected[:, : 5 * 64].unflatten(1, (5, 64)), rotation)
    assert_close(qkv, expected)
    assert torch.equal(qkv[:, 5 * 64 :], expected[:, 5 * 64 :])


def attend(qkv: Tensor, lengths: tuple[int, int], block_size: int, scale: float = 0.25) -> tuple[Tensor, Tensor]:
    """One request's last tokens of 4 heads over 2, and the cache after: lengths before and with them."""
    before, length = lengths
    blocks = torch.arange(1, 1 + -(-length // block_size), dtype=torch.int32).flip(0)[None].contiguous()
    cache = numbers(1 + blocks.numel(), 2, 2, block_size, 32, dtype=qkv.dtype, scale=1.0)
    positions = torch.arange(before, length)
    slots = blocks[0, positions // block_size].long() * block_size + positions % block_size
    firsts = torch.arange(0, length - before, 8)
    counts = (length - before - firsts).clamp(max=8)
    tiles = torch.stack((torch.zeros_like(firsts), firsts, counts, before + firsts), 1).int()
    step = PagedStep(
        slots.data_ptr(), blocks.data_ptr(), tiles.data_ptr(), len(slots), len(tiles), blocks.shape[1], 4, 2, 32,
        block_size,
    )  # fmt: skip
    out = kernels(qkv.dtype).write_and_attend(step, qkv, cache, None, scale, None)
    return out, cache[blocks[0].long()].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length]


@torch.inference_mode()
def test_write_then_attend_is_both_at_once(dtype: torch.dtype) -> None:
    qkv = numbers(4, 8 * 32, dtype=dtype)
    slots, blocks = 8 + torch.arange(4), torch.tensor([[1]], dtype=torch.int32)
    tiles = torch.tensor([[0, 0, 4, 0]], dtype=torch.int32)
    step = PagedStep(slots.data_ptr(), blocks.data_ptr(), tiles.data_ptr(), 4, 1, 1, 4, 2, 32, 8)
    at_once, apart = (torch.zeros(2, 2, 2, 8, 32, dtype=dtype) for _ in range(2))
    expected = kernels(dtype).write_and_attend(step, qkv, at_once, None, 0.25, None)
    q, kv = qkv.split([4 * 32, 4 * 32], dim=1)
    kernels(dtype).write(step, kv, apart)
    assert torch.equal(apart, at_once)
    assert torch.equal(kernels(dtype).attend(step, q.contiguous(), apart, None, 0.25, None), expected)
    assert torch.equal(apart, at_once)


@pytest.mark.parametrize("block_size", [1, 8, 16, 24, 64])
@pytest.mark.parametrize("lengths", [(0, 1), (0, 37), (36, 37), (700, 701), (130, 164)])
@torch.inference_mode()
def test_attend(lengths: tuple[int, int], block_size: int, dtype: torch.dtype) -> None:
    tokens = lengths[1] - lengths[0]
    qkv = numbers(tokens, 8 * 32, dtype=dtype)
    out, (k, v) = attend(qkv, lengths, block_size)
    assert torch.equal(k[:, lengths[0] :].transpose(0, 1).flatten(1), qkv[:, 4 * 32 : 6 * 32])
    assert torch.equal(v[:, lengths[0] :].transpose(0, 1).flatten(1), qkv[:, 6 * 32 :])
    q = qkv[:, : 4 * 32].unflatten(1, (4, 32)).transpose(0, 1)
    seen = torch.ones(tokens, lengths[1], dtype=torch.bool).tril(lengths[0])
    expected = F.scaled_dot_product_attention(
        q.double(), k.double().repeat_interleave(2, 0), v.double().repeat_interleave(2, 0), seen, scale=0.25
    )
    assert_close(out, expected.transpose(0, 1).flatten(1).to(dtype))


def number(bits: int, dtype: torch.dtype) -> Tensor:
    """[1] the number of this type that these bits stand for."""
    unsigned = torch.uint32 if dtype == torch.float32 else torch.uint16
    return torch.tensor([bits], dtype=unsigned).view(dtype)


NANS = {
    torch.float32: (
        0x7FC00000, 0xFFC00000, 0x7FC00001, 0xFFC00001, 0x7FC000FF, 0x7FC00100, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001,
    ),
    torch.bfloat16: (0x7FC0, 0xFFC0, 0x7FC1, 0xFFC1, 0x7FFF, 0xFFFF, 0x7F81),
}  # fmt: skip
"""NaN is many numbers: operations keep the lower bits of the one that they are given."""
INFINITIES = {torch.float32: (0x7F800000,), torch.bfloat16: (0x7F80,)}


def bit_patterns(*tables: Mapping[torch.dtype, tuple[int, ...]]) -> list[object]:
    """Each pattern of each type once: a cast from float32 would make one NaN of all."""
    return [
        pytest.param(dtype, bits, id=f"{dtype}-{bits:#x}")
        for dtype in DTYPES
        for table in tables
        for bits in table[dtype]
    ]


@pytest.mark.parametrize(("dtype", "bits"), bit_patterns(NANS, INFINITIES), indirect=["dtype"])
@pytest.mark.parametrize("part", ["query", "key"])
@torch.inference_mode()
def test_nan_of_a_query_or_key_is_nan_in_every_row_that_sees_it(part: str, bits: int, dtype: torch.dtype) -> None:
    bad = number(bits, dtype)
    for lengths in ((0, 24), (23, 24)):  # many rows, and few
        qkv = numbers(lengths[1] - lengths[0], 8 * 32, dtype=dtype)
        token = min(10, len(qkv) - 1)
        qkv[token, slice(0, 4 * 32) if part == "query" else slice(4 * 32, 6 * 32)] = bad
        out, _ = attend(qkv, lengths, 16)
        seen = torch.arange(len(qkv)) == token if part == "query" else torch.arange(len(qkv)) >= token
        assert torch.equal(out.isnan().all(dim=1), seen) or bad.isinf()
        assert out[~seen].isfinite().all()


@pytest.mark.parametrize(("dtype", "bits"), bit_patterns(NANS), indirect=["dtype"])
def test_nan_of_a_gate_is_nan(bits: int, dtype: torch.dtype) -> None:
    x = torch.ones(1, 64, dtype=dtype)
    x[0, 3] = number(bits, dtype)
    for name in ("silu", "gelu_pytorch_tanh"):
        assert gated(x, ACTIVATIONS[name]).isnan().tolist()[0] == [place == 3 for place in range(32)]


@torch.inference_mode()
def test_scores_of_any_size_give_weights_that_sum_to_1(dtype: torch.dtype) -> None:
    for scale in (1e-4, 50.0, 1e4):
        qkv = numbers(40, 8 * 32, dtype=dtype)
        qkv[:, 6 * 32 :] = 1.0
        out, _ = attend(qkv, (0, 40), 16, scale)
        assert_close(out, torch.ones_like(out))
    assert math.isfinite(out.sum().item())


def test_numbers_of_another_type_are_refused(dtype: torch.dtype) -> None:
    other = next(each for each in DTYPES if each != dtype)
    with pytest.raises(TypeError, match=f"takes {dtype}"):
        kernels(dtype).rms_norm(numbers(2, 32, dtype=other), numbers(32, dtype=dtype), 1e-5, 0.0)
    with pytest.raises(TypeError, match=f"takes {dtype}"):
        kernels(dtype).gate(numbers(2, 64, dtype=other), Activation.SILU)


def test_shapes_that_do_not_fit_are_refused(dtype: torch.dtype) -> None:
    kernel = kernels(dtype)
    with pytest.raises(ValueError, match="weight of shape"):
        kernel.rms_norm(numbers(2, 64, dtype=dtype), numbers(32, dtype=dtype), 1e-5, 0.0)
    with pytest.raises(ValueError, match="x of shape"):
        kernel.gate(numbers(2, 48, dtype=dtype), Activation.SILU)
    angles = numbers(3, 1, 32, dtype=dtype)
    with pytest.raises(ValueError, match="cos of shape"):
        kernel.rotate_(numbers(4, 2, 32, dtype=dtype), angles, angles)
    step = PagedStep(num_tokens=4, heads=1, kv_heads=1, head_dim=32, block_size=16)
    cache = numbers(2, 2, 1, 16, 32, dtype=dtype)
    with pytest.raises(ValueError, match="qkv of shape"):
        kernel.write_and_attend(step, numbers(3, 96, dtype=dtype), cache, None, 1.0, None)
    with pytest.raises(ValueError, match="q of shape"):
        kernel.attend(step, numbers(4, 96, dtype=dtype), cache, None, 1.0, None)
    with pytest.raises(ValueError, match="kv of shape"):
        kernel.write(step, numbers(4, 32, dtype=dtype), cache)
    with pytest.raises(ValueError, match="cache of shape"):
        kernel.write_and_attend(step, numbers(4, 96, dtype=dtype), cache[:, :, :, :8], None, 1.0, None)
    with pytest.raises(ValueError, match="cache of shape"):
        kernel.write(step, numbers(4, 64, dtype=dtype), cache[:, :, :, :8])


@pytest.mark.parametrize("name", cpu._LIMITS)
def test_library_of_other_limits_is_refused(name: str, level: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_LIMITS", {**cpu._LIMITS, name: cpu._LIMITS[name] + 1})
    for level_name in cpu.supported_levels():
        with pytest.raises(OSError, match=f"{name} {cpu._LIMITS[name] - 1} instead of {cpu._LIMITS[name]}"):
            cpu.load(level_name)


def test_library_without_limits_is_refused() -> None:
    with pytest.raises(OSError, match="does not export its limits"):
        cpu._check_limits(ctypes.CDLL(None), Path("old.so"))


def test_heads_that_do_not_fit_the_kernels_arrays_are_refused(dtype: torch.dtype) -> None:
    size = cpu.MAX_HEAD_NUMBERS + cpu.LANES
    step = PagedStep(num_tokens=1, num_tiles=1, heads=1, kv_heads=1, head_dim=size, block_size=1)
    qkv, cache = torch.zeros(1, 3 * size, dtype=dtype), torch.zeros(1, 2, 1, 1, size, dtype=dtype)
    with pytest.raises(ValueError, match="does not take cache"):
        kernels(dtype).write_and_attend(step, qkv, cache, None, 1.0, None)


def test_a_library_older_than_its_sources_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(OSError, match="is missing"):
        cpu.load("x86-64-v3")
    (tmp_path / "kernels-x86-64-v3.so").touch()
    os.utime(tmp_path / "kernels-x86-64-v3.so", (1, 1))
    (tmp_path / "kernels.c").touch()
    with pytest.raises(OSError, match="older than its sources"):
        cpu.load("x86-64-v3")
    (tmp_path / "kernels.c").unlink()
    with pytest.raises(OSError, match="file too short"):
        cpu.load("x86-64-v3")
