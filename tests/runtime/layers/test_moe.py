"""A mixture of experts gives the same on any number of ranks, however its experts are split."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvasir.layers import linear_method
from kvasir.layers.activation import sigmoid
from kvasir.layers.layout import WHOLE
from kvasir.layers.linear import finish_layers
from kvasir.layers.moe.expert_exchange import ExpertExchange
from kvasir.layers.moe.expert_routing import TopScores
from kvasir.layers.moe.experts import ExpertForm
from kvasir.layers.moe.sparse_moe import ExpertsConfig, SharedExpert, SparseMoE
from kvasir.layers.parameter import Placement, weight_loader_of
from kvasir.parallel.parallel_state import ParallelState
from runtime.parallel.thread_group import ThreadGroup, run_grid, run_ranks

CPU = torch.device("cpu")
SIZE, INNER, EXPERTS = 16, 16, 8


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def build(parallel: ParallelState, top_k: int, dtype: torch.dtype = torch.float32) -> SparseMoE:
    config = ExpertsConfig(TopScores(EXPERTS, top_k, renormalise=True), INNER)
    layer = SparseMoE(SIZE, config, F.silu, Placement(CPU, dtype, parallel))
    weight_loader_of(layer.gate.weight)(layer.gate.weight, random(EXPERTS, SIZE, seed=99), WHOLE)
    gate_up, down = layer.experts.gate_up_proj.weight, layer.experts.down_proj.weight
    for index in range(EXPERTS):
        for place, shard in enumerate(("gate_proj", "up_proj")):
            tensor = random(INNER, SIZE, seed=3 * index + place) / 4
            weight_loader_of(gate_up)(gate_up, tensor, shard, index)
        weight_loader_of(down)(down, random(SIZE, INNER, seed=3 * index + 2) / 4, WHOLE, index)
    assert not weight_loader_of(gate_up).missing
    assert not weight_loader_of(down).missing
    return layer


@given(
    ranks=st.sampled_from([2, 4]),
    experts=st.booleans(),
    top_k=st.integers(1, EXPERTS),
    tokens=st.integers(1, 9),
    alike=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_ranks_with_parts_or_with_whole_experts_compute_as_one(
    ranks: int, experts: bool, top_k: int, tokens: int, alike: bool
) -> None:
    x = random(1, SIZE, seed=7).repeat(tokens, 1) if alike else random(tokens, SIZE, seed=7)
    with torch.inference_mode():
        whole = build(ParallelState(), top_k)(x)

    def compute(group: ThreadGroup) -> Tensor:
        layer = build(ParallelState(group, expert_parallel=experts), top_k)
        assert layer.experts.gate_up_proj.weight.numel() == EXPERTS * 2 * INNER * SIZE // ranks
        result: Tensor = layer(x)
        return result

    results = run_ranks(ranks, compute)
    for result in results:
        assert torch.equal(result, results[0])
        assert torch.allclose(result, whole, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("tokens", [1, 6])
def test_groups_compute_what_single_experts_do(
    tokens: int, experts: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_method, "_can_pack", lambda placement: False)
    x = random(tokens, SIZE, seed=5).to(dtype)

    def compute(group: ThreadGroup) -> tuple[Tensor, Tensor]:
        layer = build(ParallelState(group, expert_parallel=experts), 3, dtype)
        one_by_one: Tensor = layer(x)
        layer.experts._grouped = True
        return one_by_one, layer(x)

    for one_by_one, grouped in run_ranks(2, compute):
        assert torch.allclose(grouped, one_by_one, atol=1e-5 if dtype == torch.float32 else 0.05)


@torch.inference_mode()
def test_packed_experts_compute_the_same() -> None:
    layer = build(ParallelState(), 2, torch.bfloat16)
    x = random(5, SIZE, seed=5).bfloat16()
    plain = layer(x)
    finish_layers(layer.modules())
    assert torch.allclose(layer(x).float(), plain.float(), atol=0.02)


def test_an_expert_that_the_model_does_not_have_is_refused() -> None:
    down = build(ParallelState(), 2).experts.down_proj.weight
    with pytest.raises(ValueError, match="0 to 7"):
        weight_loader_of(down)(down, torch.zeros(SIZE, INNER), WHOLE, EXPERTS)
    with pytest.raises(ValueError, match="stacks 8 layers"):
        weight_loader_of(down)(down, torch.zeros(7, SIZE, INNER), WHOLE, None)


@given(
    engines=st.sampled_from([1, 2, 4]),
    tensor=st.sampled_from([1, 2]),
    counts=st.lists(st.integers(0, 5), min_size=4, max_size=4),
    top_k=st.integers(1, EXPERTS),
    alike=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_engines_that_share_experts_compute_as_one(
    engines: int, tensor: int, counts: list[int], top_k: int, alike: bool
) -> None:
    """With any number of tokens in each, none included, and with all tokens at the same experts."""
    tokens = [
        (random(1, SIZE, seed=7).repeat(count, 1) if alike else random(count, SIZE, seed=engine))
        for engine, count in enumerate(counts[:engines])
    ]
    with torch.inference_mode():
        whole = build(ParallelState(), top_k)
        expected = [whole(x) for x in tokens]

    def compute(data: ThreadGroup, group: ThreadGroup) -> Tensor:
        layer = build(ParallelState(group, expert_parallel=True, data=data), top_k)
        assert len(layer.experts.own) == EXPERTS // (engines * tensor)
        return cat([layer(tokens[data.rank]), layer(tokens[data.rank][:1])])  # a second call: the order holds

    for engine, results in enumerate(run_grid(engines, tensor, compute)):
        for result in results:
            assert torch.equal(result, results[0])
            assert torch.allclose(result, cat([expected[engine], expected[engine][:1]]), atol=1e-5)


def cat(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts)


@pytest.mark.parametrize("counts", [(3, 0), (0, 3), (2, 5)])
def test_engines_exchange_bfloat16_without_a_loss(counts: tuple[int, int]) -> None:
    tokens = [random(count, SIZE, seed=count).bfloat16() for count in counts]

    def compute(group: ThreadGroup) -> tuple[Tensor, Tensor, Tensor, list[int]]:
        x = tokens[group.rank]
        weights = torch.full((len(x), 2), group.rank + 0.25)
        return ExpertExchange(group).dispatch(x, weights, torch.full((len(x), 2), group.rank + 6))

    for x, weights, chosen, found in run_ranks(2, compute):
        assert found == list(counts)
        assert torch.equal(x, cat(tokens))
        ranks = torch.tensor([0] * counts[0] + [1] * counts[1])[:, None].expand(-1, 2)
        assert torch.equal(weights, ranks + 0.25)
        assert torch.equal(chosen, ranks + 6)


def test_engines_without_tokens_exchange_only_their_numbers() -> None:
    def compute(group: ThreadGroup) -> tuple[int, int]:
        layer = build(ParallelState(expert_parallel=True, data=group), 2)
        return len(layer(torch.empty(0, SIZE))), group.operations

    assert run_ranks(2, compute) == [(0, 1), (0, 1)]


@pytest.mark.parametrize("counts", [(3, 0), (2, 4), (0, 0)])
def test_engines_with_shared_experts_compute_as_one(counts: tuple[int, int]) -> None:
    """Weights multiply the inputs of experts, and each engine computes the shared expert of its tokens."""
    routing = TopScores(EXPERTS, 2, score=sigmoid, corrected=True, groups=4, top_groups=2)
    config = ExpertsConfig(
        routing, INNER, form=ExpertForm(bias=True), shared=SharedExpert(INNER, gated=True), weights_inputs=True
    )
    tokens = [random(count, SIZE, seed=count) for count in counts]

    def layer(parallel: ParallelState) -> SparseMoE:
        moe = SparseMoE(SIZE, config, F.silu, Placement(CPU, torch.float32, parallel))
        whole = SparseMoE(SIZE, config, F.silu, Placement(CPU, torch.float32))
        own = moe.experts.own
        for seed, (name, parameter) in enumerate(whole.named_parameters()):
            numbers = random(*parameter.shape, seed=seed) / 4
            moe.get_parameter(name).data.copy_(
                numbers[own.start : own.stop] if name.startswith("experts") else numbers
            )
        return moe

    with torch.inference_mode():
        expected = [layer(ParallelState())(x) for x in tokens]

    def compute(data: ThreadGroup) -> Tensor:
        with torch.inference_mode():
            result: Tensor = layer(ParallelState(expert_parallel=True, data=data))(tokens[data.rank])
            return result

    for found, alone in zip(run_ranks(2, compute), expected, strict=True):
        assert torch.allclose(found, alone, atol=1e-5)


def test_experts_that_the_ranks_cannot_share_evenly_are_refused() -> None:
    def compute(group: ThreadGroup) -> None:
        with pytest.raises(ValueError, match="3 ranks cannot hold the same number of 8 experts"):
            build(ParallelState(expert_parallel=True, data=group), 2)

    run_ranks(3, compute)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_empty_pass_serves_an_engine_that_has_tokens(dtype: torch.dtype) -> None:
    x = random(3, SIZE, seed=1).to(dtype)
    with torch.inference_mode():
        expected = build(ParallelState(), 2, dtype)(x)

    def compute(group: ThreadGroup) -> Tensor | None:
        layer = build(ParallelState(expert_parallel=True, data=group), 2, dtype)
        finish_layers(layer.modules())
        if group.rank == 1:
            result: Tensor = layer(x)
            return result
        layer.forward_empty()
        return None

    _, found = run_ranks(2, compute)
    assert found is not None
    assert torch.allclose(found, expected, atol=1e-5 if dtype == torch.float32 else 0.05)
