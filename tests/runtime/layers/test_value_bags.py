"""A decode whose V is summed in place is the decode that copies V out of the cache."""

import numpy as np
import pytest
import torch

from kvasir.layers.attention import HeadShape, KVCache, attend
from kvasir.layers.parameter import Placement
from kvasir.params import SamplingParams
from kvasir.worker import attention_plan
from kvasir.worker.inputs import InputBuilder
from kvasir.worker.request_table import RequestTable
from kvasir.worker.step import NewRow, ScheduledRow

BLOCK = 4
LENGTHS = (1, 4, 5, 17, 18, 64)
GREEDY = SamplingParams(max_tokens=1, seed=0, temperature=0.0)


def decoded(shape: HeadShape, dtype: torch.dtype, window: int | None) -> tuple[torch.Tensor, bool]:
    """What requests of these lengths attend to, and whether their V was summed in place."""
    generator = torch.Generator().manual_seed(5)
    table = RequestTable(len(LENGTHS), max(LENGTHS), BLOCK)
    blocks = iter(np.random.default_rng(3).permutation(np.arange(1, 60)).tolist())
    for index, length in enumerate(LENGTHS):
        table.add(NewRow(str(index), [0] * length, length, GREEDY))
        table.append_blocks(index, [next(blocks) for _ in range(-(-length // BLOCK))])
    inputs = InputBuilder(
        table,
        Placement(torch.device("cpu"), dtype),
        block_size=BLOCK,
        heads=shape,
        vocab_size=10,
        gather_blocks=24,
        windows=frozenset() if window is None else frozenset((window,)),
    )
    plan = inputs.build([ScheduledRow(str(i), length - 1, 1, []) for i, length in enumerate(LENGTHS)]).plan
    cache = torch.randn(60, 2, shape.kv_heads, BLOCK, shape.head_dim, generator=generator).to(dtype)
    cache[0] = 0  # the null block
    width = shape.query_size + 2 * shape.kv_size
    qkv = torch.randn(len(LENGTHS), width, generator=generator).to(dtype)
    groups = plan.within(window).decode
    result = attend(qkv, KVCache(cache), plan.within(window), shape, 0.3)
    return result, all(group.values is not None for group in groups)


@pytest.mark.parametrize("heads", [3, 6])
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_v_summed_in_place_gives_what_a_copy_of_it_gives(
    heads: int, window: int | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = HeadShape(heads, 3, head_dim=8)
    in_place, was_in_place = decoded(shape, dtype, window)
    monkeypatch.setattr(attention_plan, "_BAGGED_GROUP", 0)
    copied, of_copy_in_place = decoded(shape, dtype, window)
    assert was_in_place
    assert not of_copy_in_place
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    assert torch.allclose(in_place.float(), copied.float(), rtol=tolerance, atol=tolerance)
