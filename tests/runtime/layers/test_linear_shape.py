import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvasir.layers.layout import Split
from kvasir.layers.linear_shape import INPUTS, OUTPUTS, Axis, LinearShape, Stack
from kvasir.layers.parameter import Placement, weight_loader_of
from kvasir.parallel.parallel_state import UnevenSplit

CPU = Placement(torch.device("cpu"), torch.float32)
UNITS = st.sampled_from([1, 2, 4])


def weight_of(entries: Tensor, axes: tuple[Axis, ...]) -> Tensor:
    """Repeat entries by their units; return [outputs, inputs]."""
    for place, axis in enumerate(axes):
        entries = entries.repeat_interleave(axis.unit, dim=place)
    return entries if axes[0].dim == OUTPUTS.dim else entries.t()


@given(outputs=UNITS, inputs=UNITS, inputs_first=st.booleans(), split_dim=st.sampled_from([0, 1]))
@settings(max_examples=40, deadline=None)
def test_a_rank_holds_its_part_of_the_weight(outputs: int, inputs: int, inputs_first: bool, split_dim: int) -> None:
    axes = (OUTPUTS.by(outputs), INPUTS.by(inputs))
    axes = axes[::-1] if inputs_first else axes
    shards = {"a": 8, "b": 16}
    tensors = {
        shard: torch.randint(999, [(size, 16)[axis.dim] // axis.unit for axis in axes], dtype=torch.int32)
        for shard, size in shards.items()
    }
    for rank in range(2):
        shape = LinearShape(16, shards, Split(split_dim, rank, 2))
        parameter = shape.parameter(CPU, *axes, dtype=torch.int32)
        for shard, tensor in tensors.items():
            weight_loader_of(parameter)(parameter, tensor, shard)
        assert not weight_loader_of(parameter).missing
        parts = [weight_of(tensor, axes).chunk(2, dim=split_dim)[rank] for tensor in tensors.values()]
        assert torch.equal(weight_of(parameter, axes), torch.cat(parts))


def test_stacked_layers_have_a_dimension_for_their_number() -> None:
    shape = LinearShape(16, {"": 8}, Split(1, 1, 2), stack=Stack(4, range(2, 4)))
    parameter = shape.parameter(CPU, INPUTS.by(8), OUTPUTS, dtype=torch.int32)
    tensors = torch.randint(999, (4, 2, 8), dtype=torch.int32)
    for index, tensor in enumerate(tensors):
        weight_loader_of(parameter)(parameter, tensor, "", index)
    assert torch.equal(parameter, tensors[2:, 1:])


def test_a_parameter_without_the_split_dimension_is_whole() -> None:
    shape = LinearShape(16, {"": 8}, Split(1, 1, 2))
    assert shape.parameter(CPU, OUTPUTS).shape == (8,)


@pytest.mark.parametrize(("copies", "parts"), [(1, "4 ranks"), (2, "2 ranks")])
def test_ranks_do_not_share_an_entry(copies: int, parts: str) -> None:
    shape = LinearShape(16, {"q": 32, "k": 8}, Split(0, 1, 4), copies={"k": copies})
    with pytest.raises(UnevenSplit, match=f"{parts} cannot hold equal parts of 8 in units of 8"):
        shape.parameter(CPU, OUTPUTS.by(8), INPUTS)
