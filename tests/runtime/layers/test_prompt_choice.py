from collections.abc import Iterator

import numpy as np
import pytest
import torch

from kvasir.kernels.cpu import MAX_TILE_ROWS, Kernels, kernels_for
from kvasir.layers.attention import HeadShape, StepRows
from kvasir.layers.attention_backends import gather_planner, prompt_choice
from kvasir.layers.attention_backends.prompt_choice import (
    PAIRS,
    PLAIN,
    TORCH,
    AttentionChoice,
    PromptPlan,
    PromptPlanner,
    choose,
    measure,
    prompt_planner,
)
from kvasir.layers.attention_backends.tiles import TilePlan, TilePlanner
from kvasir.layers.parameter import Placement
from runtime.layers.paged import Paged

BFLOAT16 = Placement(torch.device("cpu"), torch.bfloat16)
LENGTHS = (40, 64, 150, 201)
HEADS = {
    "a head each": HeadShape(heads=2, kv_heads=2, head_dim=64),
    "groups of 3": HeadShape(heads=6, kv_heads=2, head_dim=16),
    "groups of 16": HeadShape(heads=16, kv_heads=1, head_dim=32),
    "of 128": HeadShape(heads=4, kv_heads=2, head_dim=128),
    "of 80": HeadShape(heads=2, kv_heads=1, head_dim=80),
    "wide": HeadShape(heads=2, kv_heads=1, head_dim=256),
}


def kernels() -> Kernels:
    found = kernels_for(BFLOAT16.device, BFLOAT16.dtype)
    if found is None:
        pytest.skip("there are no kernels for this machine's CPU: plain torch computes")
    return found


@pytest.fixture(params=(PAIRS, TORCH), ids=str)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AttentionChoice:
    if request.param.pairs and kernels().pair_rows == MAX_TILE_ROWS:
        pytest.skip("this processor has no dot products of bfloat16")
    monkeypatch.setattr(prompt_choice, "choose", lambda kernels, heads, threads: request.param)
    monkeypatch.setattr(gather_planner, "_MASK_NUMBERS", 5000)  # several parts of a chunk
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def run(paged: Paged) -> None:
    """Whole prompts, long and short chunks after a cached prefix, and next to decodes."""
    for counts in ({0: 40, 1: 64, 2: 70}, {2: 79, 3: 100}, {2: 1, 3: 65}, {3: 35}, {3: 1}):
        paged.step(counts)
    paged.run(np.random.default_rng(0))


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize(
    ("window", "softcap", "sinks"),
    [(None, None, False), (1, None, False), (45, None, True), (100, 1.5, False), (None, 1.5, True)],
)
@torch.inference_mode()
def test_prompts_give_the_definition(
    way: AttentionChoice, heads: HeadShape, window: int | None, softcap: float | None, sinks: bool
) -> None:
    run(Paged((window,), softcap, heads, sinks=sinks, lengths=LENGTHS, placement=BFLOAT16))


@pytest.mark.parametrize("window", [None, 20])
@torch.inference_mode()
def test_a_sink_of_minus_infinity_takes_no_weight(way: AttentionChoice, window: int | None) -> None:
    paged = Paged((window,), None, HEADS["groups of 3"], sinks=True, lengths=LENGTHS, placement=BFLOAT16)
    assert paged.sinks is not None
    paged.sinks[::2] = -torch.inf
    run(paged)


@torch.inference_mode()
def test_prompts_read_no_freed_block_nor_unwritten_place(way: AttentionChoice) -> None:
    paged = Paged((None, 50), None, HEADS["of 80"], freed=float("nan"), lengths=LENGTHS, placement=BFLOAT16)
    for cache in paged.caches:
        cache.blocks.fill_(torch.nan)
    run(paged)


@torch.inference_mode()
def test_nan_of_a_key_reaches_exactly_the_tokens_that_see_it(way: AttentionChoice) -> None:
    if way == TORCH:
        pytest.skip("torch adds a mask to the scores")
    heads = HEADS["a head each"]
    for bad in (float("nan"), float("inf")):
        paged = Paged((60,), None, heads, lengths=(200,), placement=BFLOAT16)
        paged.qkv[0][0][90, heads.query_size : heads.query_size + heads.kv_size] = bad
        paged.step({0: 200})
        hit = paged.outputs[0][0].isnan().all(dim=1)
        assert hit.nonzero().flatten().tolist() == list(range(90, 150))


def planner_of(placement: Placement) -> object:
    heads = HEADS["of 128"]
    kernels()
    found = kernels_for(placement.device, placement.dtype)
    assert found is not None
    return prompt_planner(found, np.zeros((1, 40), np.int32), 16, heads, {None}, placement)


def plan_of(planner: object, computed: list[int], new: list[int]) -> TilePlan | PromptPlan:
    assert isinstance(planner, TilePlanner | PromptPlanner)
    none = np.zeros(sum(new), np.int64)
    return planner.plan(StepRows(np.zeros(len(new), np.int64), np.array(computed), np.array(new), none, none, none))


def test_float32_and_invariant_engines_have_no_choice(way: AttentionChoice) -> None:
    for placement in (
        Placement(torch.device("cpu"), torch.float32),
        Placement(torch.device("cpu"), torch.bfloat16, batch_invariant=True),
    ):
        plan = plan_of(planner_of(placement), [0], [64])
        assert isinstance(plan, TilePlan)
        assert (plan.step.num_tiles, plan.step.pairs) == (64 * 2 // MAX_TILE_ROWS, 0)


def test_short_chunks_have_the_tiles_of_decodes(way: AttentionChoice) -> None:
    plan = plan_of(planner_of(BFLOAT16), [100, 100], [1, 20])
    assert isinstance(plan, TilePlan)
    assert plan.step.num_tiles == 1 + -(-20 * 2 // MAX_TILE_ROWS)


def test_torch_copies_no_context_beyond_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels()
    monkeypatch.setattr(prompt_choice, "choose", lambda kernels, heads, threads: TORCH)
    planner = planner_of(BFLOAT16)
    assert isinstance(plan_of(planner, [7, 0], [1, 64]), PromptPlan)
    monkeypatch.setattr(prompt_choice, "MAX_COPIED_BYTES", HEADS["of 128"].kv_bytes(torch.bfloat16) * 80)
    assert isinstance(plan_of(planner, [16], [64]), PromptPlan)
    assert isinstance(plan_of(planner, [17], [64]), TilePlan)


def test_the_fastest_way_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = HEADS["groups of 3"]
    assert set(measure(kernels(), heads)) >= {PLAIN, TORCH}
    for times, expected in (
        ({PLAIN: 1.0, PAIRS: 2.0, TORCH: 3.0}, PLAIN),
        ({PLAIN: 2.0, PAIRS: 1.0, TORCH: 3.0}, PAIRS),
        ({PLAIN: 3.0, PAIRS: 4.0, TORCH: 2.0}, TORCH),
        ({PLAIN: 3.0, PAIRS: 2.0, TORCH: 1.0}, AttentionChoice(pairs=True, torch=True)),
        ({PLAIN: 1.0, TORCH: 2.0}, PLAIN),
    ):
        monkeypatch.setattr(prompt_choice, "measure", lambda kernels, heads, times=times: times)
        assert choose.__wrapped__(kernels(), heads, 1) == expected
