from collections.abc import Sequence

import numpy as np
import pytest
import torch

from kvasir.layers.attention import HeadShape
from kvasir.layers.attention_backends import gather_planner
from kvasir.layers.attention_backends.gather import GatheredReads, GatherPlan
from kvasir.layers.kv import FullAttention, KVGroup
from kvasir.layers.parameter import Placement
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from kvasir.worker.batch.inputs import InputBuilder, StepBatch
from kvasir.worker.batch.request_table import RequestTable
from kvasir.worker.kv_memory.cache_memory import block_shape
from kvasir.worker.step import NewRow, ScheduledRow

BLOCK = 4
KV_HEADS = 2
HEADS = HeadShape(4 * KV_HEADS, KV_HEADS, head_dim=8)
GATHER_BLOCKS = 32
GREEDY = SamplingParams(max_tokens=1, seed=0, temperature=0.0)


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather_planner, "CPU_GATHER_BYTES", GATHER_BLOCKS * BLOCK * HEADS.kv_bytes(torch.float32))


class Table:
    def __init__(
        self,
        rows: int = 64,
        max_model_len: int = 512,
        windows: Sequence[int | None] = (None,),
        samples: bool = True,
    ) -> None:
        self.table = RequestTable(rows, max_model_len, BLOCK)
        self.builder = InputBuilder(
            self.table,
            Placement(torch.device("cpu"), torch.float32),
            groups=[KVGroup(FullAttention(block_shape(HEADS, BLOCK, torch.float32)), tuple(range(len(windows))))],
            heads=HEADS,
            windows=windows,
            vocab_size=100,
            max_tokens=256,
            samples=samples,
        )
        self._next_block = 1

    def add(self, name: str, tokens: int, params: SamplingParams = GREEDY, prompt: int | None = None) -> None:
        self.table.add(NewRow(name, packed(range(1000, 1000 + tokens)), prompt or tokens, params))
        count = -(-tokens // BLOCK)
        self.table.append_blocks(self.table.row_of(name), [list(range(self._next_block, self._next_block + count))])
        self._next_block += count

    def build(self, *scheduled: tuple[str, int, int]) -> StepBatch:
        return self.builder.build([ScheduledRow(name, computed, new, []) for name, computed, new in scheduled])

    def blocks(self, name: str) -> list[int]:
        row = self.table.row_of(name)
        ids: list[int] = self.table.block_tables[0, row, : self.table.num_blocks[0, row]].tolist()
        return ids


def plan_of(batch: StepBatch) -> GatherPlan:
    (plan,) = batch.attention.values()
    assert isinstance(plan, GatherPlan)
    return plan


def reads_of(batch: StepBatch) -> GatheredReads:
    return plan_of(batch).within(None)


def test_a_stage_without_sampling_has_the_same_batch() -> None:
    batches = []
    for samples in (True, False):
        table = Table(samples=samples)
        table.add("chunk", 10)
        table.add("decode", 6)
        batches.append(table.build(("chunk", 3, 7), ("decode", 5, 1)))
    last, other = batches
    assert torch.equal(other.token_ids, last.token_ids)
    assert torch.equal(other.positions, last.positions)
    assert (len(last.rows), len(other.rows), len(other.outputs)) == (2, 0, 0)


def test_groups_without_a_layer_in_the_stage_are_not_planned() -> None:
    spec = FullAttention(block_shape(HEADS, BLOCK, torch.float32))
    table = RequestTable(4, 64, BLOCK, kv_groups=3)
    builder = InputBuilder(
        table,
        Placement(torch.device("cpu"), torch.float32),
        groups=[KVGroup(spec, ()), KVGroup(spec, (4,)), KVGroup(spec, ())],
        heads=HEADS,
        windows=(None,) * 5,
        vocab_size=100,
        max_tokens=256,
    )
    table.add(NewRow("a", packed(range(6)), 6, GREEDY))
    table.append_blocks(table.row_of("a"), [[1, 2], [3, 4], [5, 6]])
    plans = builder.build([ScheduledRow("a", 0, 6, [])]).attention
    assert list(plans) == [1]
    plan = plans[1]
    assert isinstance(plan, GatherPlan)
    assert plan.blocks.tolist() == [3] * 4 + [4] * 2


def test_tokens_positions_and_places_of_decodes_before_chunks() -> None:
    table = Table()
    table.add("chunk", 10)
    table.add("decode", 6)
    batch = table.build(("chunk", 3, 7), ("decode", 5, 1))
    assert batch.token_ids.tolist() == [1005, *range(1003, 1010)]
    assert batch.positions.tolist() == [5, *range(3, 10)]
    first, second, third = table.blocks("chunk")
    assert plan_of(batch).blocks.tolist() == [table.blocks("decode")[1], first, *[second] * 4, *[third] * 2]
    assert plan_of(batch).offsets.tolist() == [1, 3, 0, 1, 2, 3, 0, 1]


def test_a_chunk_of_one_token_is_not_sampled_after() -> None:
    for samples, sampled in ((True, [1]), (False, [])):
        table = Table(samples=samples)
        table.add("decode", 8)
        table.add("partly", 6)
        batch = table.build(("decode", 7, 1), ("partly", 2, 1))
        assert batch.token_ids.tolist() == [1002, 1007]  # shorter contexts stand first
        assert batch.positions.tolist() == [2, 7]
        assert plan_of(batch).offsets.tolist() == [2, 3]
        assert batch.sampled is not None
        assert batch.sampled.tolist() == sampled
        assert batch.outputs.tolist() == [0] * len(sampled)


def test_only_rows_that_reach_their_last_token_are_sampled() -> None:
    table = Table()
    table.add("partly", 10)
    table.add("wholly", 5)
    table.add("decode", 8)
    batch = table.build(("partly", 0, 6), ("wholly", 0, 5), ("decode", 7, 1))
    assert batch.sampled is not None
    assert batch.sampled.tolist() == [0, 5]  # shorter prompts stand first
    assert batch.rows.tolist() == [table.table.row_of("decode"), table.table.row_of("wholly")]
    assert batch.outputs.tolist() == [2, 1]


def test_a_step_of_decodes_takes_all_hidden_states_as_they_are() -> None:
    table = Table()
    for index, length in enumerate((9, 3, 30)):
        table.add(f"r{index}", length)
    batch = table.build(("r0", 8, 1), ("r1", 2, 1), ("r2", 29, 1))
    assert batch.sampled is None
    assert batch.outputs.tolist() == [1, 0, 2]


@pytest.mark.parametrize("seed", range(5))
def test_decode_groups_cover_every_row_once_within_their_bounds(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 500, 60).tolist()
    table = Table()
    for index, length in enumerate(lengths):
        table.add(f"r{index}", length)
    batch = table.build(*[(f"r{index}", length - 1, 1) for index, length in enumerate(lengths)])
    ordered = sorted(range(60), key=lambda index: lengths[index])
    place = 0
    for group in reads_of(batch).decode:
        assert group.tokens.start == place
        place = group.tokens.stop
        rows = group.tokens.stop - group.tokens.start
        pieces = group.pieces.view(2, rows, KV_HEADS, -1)
        width = pieces.shape[-1]
        assert rows == 1 or rows * width <= GATHER_BLOCKS
        shortest = -(-lengths[ordered[group.tokens.start]] // BLOCK)
        assert width <= shortest * 1.25 + 1
        for row in range(rows):
            name = f"r{ordered[group.tokens.start + row]}"
            own = table.blocks(name)
            padded = own + own[-1:] * (width - len(own))
            for which in range(2):
                for head in range(KV_HEADS):
                    expected = [(block * 2 + which) * KV_HEADS + head for block in padded]
                    assert pieces[which, row, head].tolist() == expected
            visible = width * BLOCK if group.mask is None else int((group.mask[row] == 0).sum())
            assert visible == lengths[ordered[group.tokens.start + row]]
    assert place == 60


def test_one_long_request_does_not_pad_the_short_ones() -> None:
    table = Table()
    for index in range(31):
        table.add(f"short{index}", 8)
    table.add("long", 500)
    batch = table.build(*[(f"short{index}", 7, 1) for index in range(31)], ("long", 499, 1))
    gathered = sum(group.pieces.numel() for group in reads_of(batch).decode) // (2 * KV_HEADS)
    assert gathered == 31 * 2 + 125


def test_a_chunk_sees_what_stands_before_each_of_its_tokens() -> None:
    table = Table()
    table.add("r", 9)
    (chunk,) = reads_of(table.build(("r", 5, 4))).prefill
    assert chunk.mask is not None
    visible = chunk.mask == 0
    assert visible.tolist() == [[key <= 5 + query for key in range(9)] for query in range(4)]
    (first,) = reads_of(table.build(("r", 0, 5))).prefill
    assert first.mask is None
    assert first.pieces is None


@pytest.mark.parametrize(("before", "new"), [(120_000, 8192), (0, 16_384), (7, 2000)])
def test_masks_of_long_chunks_are_bounded(before: int, new: int) -> None:
    """The mask of all queries of the first chunk would have over 10**9 numbers."""
    table = Table(rows=1, max_model_len=before + new, windows=(None, 1000))
    table.add("r", before + new)
    plan = plan_of(table.build(("r", before, new)))
    for window, reads in plan.reads.items():
        (chunk,) = reads.prefill
        if chunk.mask is None:
            assert (window, before) == (None, 0)
        else:
            assert chunk.mask.shape[1] == chunk.length
            assert chunk.mask.nbytes <= 64 * 2**20


def test_whole_prompts_of_one_length_are_one_chunk() -> None:
    table = Table()
    for name, tokens in (("a", 5), ("b", 7), ("c", 5), ("known", 9)):
        table.add(name, tokens)
    short, long, rest = reads_of(table.build(("a", 0, 5), ("b", 0, 7), ("known", 4, 5), ("c", 0, 5))).prefill
    assert (short.requests, short.tokens) == (2, slice(0, 10))
    assert (long.requests, long.tokens) == (1, slice(10, 17))
    assert (rest.requests, rest.tokens, rest.length) == (1, slice(17, 22), 9)
