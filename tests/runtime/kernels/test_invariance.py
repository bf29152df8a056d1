"""The bits of a row do not depend on the number of rows, its place among them, chunks or threads."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from kvasir.kernels import cpu
from kvasir.kernels.cpu import Kernels
from kvasir.layers.attention import HeadShape, KVCache, ScoreRule, StepRows
from kvasir.layers.attention_backends.tiles import TilePlanner

TOKENS = 90


@pytest.fixture(params=cpu.supported_levels(), scope="module")
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=(torch.float32, torch.bfloat16), ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def kernels(level: str, dtype: torch.dtype) -> Kernels:
    return cpu.load(level)[dtype]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def numbers(*shape: int, dtype: torch.dtype, seed: int = 7) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 96), (768, 53), (1100, 49), (7, 1), (2000, 30)])
@torch.inference_mode()
def test_linear(inputs: int, outputs: int, bias: bool, kernels: Kernels, dtype: torch.dtype) -> None:
    x, weight = numbers(70, inputs, dtype=dtype), numbers(outputs, inputs, dtype=dtype)
    added = numbers(outputs, dtype=dtype) if bias else None
    whole = kernels.linear(x, weight, added)
    exact = x.double() @ weight.double().T + (0 if added is None else added.double())
    bound = 2e-2 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(whole.double(), exact, rtol=bound, atol=bound)
    for count in (1, 2):
        torch.set_num_threads(count)
        for first, rows in ((0, 1), (1, 1), (3, 2), (5, 3), (2, 4), (9, 5), (0, 16), (13, 33), (0, 70)):
            part = kernels.linear(x[first : first + rows], weight, added)
            assert torch.equal(part, whole[first : first + rows]), f"{rows} rows from {first}, {count} threads"


def test_linear_refuses_what_does_not_fit(kernels: Kernels, dtype: torch.dtype) -> None:
    weight = numbers(4, 8, dtype=dtype)
    with pytest.raises(ValueError, match="x of shape"):
        kernels.linear(numbers(2, 7, dtype=dtype), weight, None)
    with pytest.raises(ValueError, match="weight of shape"):
        kernels.linear(numbers(2, 4, dtype=dtype), weight.T, None)
    with pytest.raises(ValueError, match="bias of shape"):
        kernels.linear(numbers(2, 8, dtype=dtype), weight, numbers(3, dtype=dtype))
    with pytest.raises(TypeError, match="the kernel takes"):
        kernels.linear(numbers(2, 8, dtype=torch.float16), weight, None)


@pytest.mark.parametrize("size", [1, 15, 256, 50257])
@torch.inference_mode()
def test_log_sum_exp(size: int, kernels: Kernels, dtype: torch.dtype) -> None:
    x = numbers(9, size, dtype=dtype) * 8
    whole = kernels.log_sum_exp(x)
    torch.testing.assert_close(whole.double(), x.double().logsumexp(-1), rtol=2e-6, atol=2e-6)
    for count in (1, 2):
        torch.set_num_threads(count)
        for row in range(9):
            assert torch.equal(kernels.log_sum_exp(x[row : row + 1]), whole[row : row + 1])


@torch.inference_mode()
def test_log_sum_exp_of_numbers_far_out(kernels: Kernels, dtype: torch.dtype) -> None:
    far = torch.tensor([[1e30, 0.0, -1e30], [-1e30, -1e30, -1e30], [0.0, -torch.inf, 0.0]], dtype=dtype)
    torch.testing.assert_close(kernels.log_sum_exp(far).double(), far.double().logsumexp(-1))
    assert kernels.log_sum_exp(torch.tensor([[0.0, torch.nan] * 20], dtype=dtype)).isnan().all()


def attend(kernels: Kernels, qkv: Tensor, heads: HeadShape, block: int, window: int | None, chunk: int) -> Tensor:
    """One request, computed in chunks of so many tokens."""
    table = np.arange(1, 2 + -(-TOKENS // block), dtype=np.int32)[None].copy()
    planner = TilePlanner(kernels, table, block, heads)
    cache = torch.zeros(table.size + 1, 2, heads.kv_heads, block, heads.head_dim, dtype=qkv.dtype)
    outputs = []
    for start in range(0, TOKENS, chunk):
        positions = np.arange(start, min(start + chunk, TOKENS))
        step = StepRows(
            rows=np.array([0]),
            computed=np.array([start]),
            new=np.array([len(positions)]),
            token_rows=np.zeros(len(positions), np.int64),
            token_blocks=positions // block,
            offsets=positions % block,
        )
        new = qkv[start : start + len(positions)]
        outputs.append(planner.plan(step).write_and_attend(new, KVCache(cache), ScoreRule(0.2, window)))
    return torch.cat(outputs)


@pytest.mark.parametrize("window", [None, 19])
@pytest.mark.parametrize("block", [8, 16, 24])
@pytest.mark.parametrize(
    "heads", [HeadShape(4, 2, 64), HeadShape(4, 4, 32), HeadShape(8, 1, 128), HeadShape(2, 1, 80)], ids=str
)
@torch.inference_mode()
def test_attention(heads: HeadShape, block: int, window: int | None, kernels: Kernels, dtype: torch.dtype) -> None:
    """A token's own step has few rows for the kernel, a prefill many; chunks end anywhere in a block."""
    qkv = numbers(TOKENS, heads.query_size + 2 * heads.kv_size, dtype=dtype)
    decoded = attend(kernels, qkv, heads, block, window, 1)
    for chunk in (7, 33, TOKENS):
        assert torch.equal(attend(kernels, qkv, heads, block, window, chunk), decoded), f"chunks of {chunk}"
