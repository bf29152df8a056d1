"""A linear method can be added without a change of the layers: the example of docs/design/parallel.md."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from kvasir.layers import linear
from kvasir.layers.linear import ColumnLinear, Linear, RowLinear, finish_layers
from kvasir.layers.linear_method import LinearShape
from kvasir.layers.parameter import (
    WHOLE,
    Layout,
    Placement,
    Source,
    new_parameter,
    parameter_with,
    weight_loader_of,
)
from kvasir.parallel.parallel_state import SINGLE, ParallelState
from runtime.parallel.thread_group import ThreadGroup, run_ranks

INPUTS, OUTPUTS = 8, {"a": 4, "b": 6}


class ExactLoader:
    """Copies numbers of one type without conversion."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.missing = set(layout.shards)

    def __call__(self, parameter: nn.Parameter, source: Source, shard: str, index: int | None = None) -> None:
        for part, rows in self._layout.places(shard):
            piece = source[part]
            if piece.dtype != parameter.dtype:
                raise ValueError(f"it is {piece.dtype} and must be {parameter.dtype}")
            parameter.data[rows].copy_(piece)
        self.missing -= set(self._layout.shards) if shard == WHOLE else {shard}

    def parts(self, shard: str, index: int | None = None) -> list[tuple[slice, ...]]:
        return [part for part, _ in self._layout.places(shard)]


class Int8Method:
    """Whole numbers of 8 bits, and a scale for each output."""

    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        size = sum(shape.outputs.values())
        layout = Layout((size, shape.inputs), shape.outputs, shape.split, shape.copies)
        weight = parameter_with(ExactLoader(layout), layout.local_shape, replace(placement, dtype=torch.int8))
        of_rows = shape.split if shape.split is not None and shape.split.dim == 0 else None
        scale = new_parameter(size, placement=placement, shards=shape.outputs, split=of_rows, copies=shape.copies)
        return {"weight": weight, "weight_scale": scale}

    def finish(self, layer: nn.Module) -> None:
        """Put the inputs first, as `apply` multiplies."""
        weight = layer.get_parameter("weight")
        weight.data = weight.data.t().contiguous()  # [inputs, outputs]

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        product = (x @ layer.get_parameter("weight").to(x.dtype)) * layer.get_parameter("weight_scale")
        return product if bias is None else product.add_(bias)


@pytest.fixture(autouse=True)
def int8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "new_method", lambda placement: Int8Method())


def compute(kind: type[Linear], parallel: ParallelState, x: Tensor) -> Tensor:
    placement = Placement(torch.device("cpu"), torch.float32, parallel)
    generator = torch.Generator().manual_seed(1)
    size = sum(OUTPUTS.values())
    tensors = {
        "weight": torch.randint(-127, 128, (size, INPUTS), dtype=torch.int8, generator=generator),
        "weight_scale": torch.rand(size, generator=generator),
        "bias": torch.randn(size, generator=generator),
    }
    layer = kind(INPUTS, size if kind is RowLinear else OUTPUTS, bias=True, placement=placement)
    for name, parameter in layer.named_parameters():
        load = weight_loader_of(parameter)
        shards = {WHOLE: size} if kind is RowLinear else OUTPUTS
        for shard, part in zip(shards, tensors[name].split(list(shards.values())), strict=True):
            load(parameter, part, shard)
        assert not load.missing
    finish_layers([layer])
    result: Tensor = layer(x)
    return result


@torch.inference_mode()
def test_a_quantised_method_works_in_split_layers() -> None:
    x = torch.randn(3, INPUTS, generator=torch.Generator().manual_seed(2))
    whole = compute(Linear, SINGLE, x)

    def by_columns(group: ThreadGroup) -> Tensor:
        return compute(ColumnLinear, ParallelState(group), x)

    def by_rows(group: ThreadGroup) -> Tensor:
        half = INPUTS // 2
        return compute(RowLinear, ParallelState(group), x[:, half * group.rank : half * (group.rank + 1)])

    first, second = run_ranks(2, by_columns)
    a, b = first.split([2, 3], dim=1), second.split([2, 3], dim=1)
    assert torch.allclose(torch.cat([a[0], b[0], a[1], b[1]], dim=1), whole, rtol=1e-4, atol=1e-3)
    for result in run_ranks(2, by_rows):
        assert torch.allclose(result, whole, rtol=1e-4, atol=1e-3)


def test_a_tensor_of_another_type_is_refused() -> None:
    layer = Linear(INPUTS, OUTPUTS, bias=False, placement=Placement(torch.device("cpu"), torch.float32))
    with pytest.raises(ValueError, match=r"float32 and must be torch\.int8"):
        weight_loader_of(layer.weight)(layer.weight, torch.zeros(4, INPUTS), "a")
