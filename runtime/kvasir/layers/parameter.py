"""Parameters that a checkpoint fills: each is uninitialised and has a `weight_loader`."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeVar

import torch
from torch import Tensor, nn

from kvasir.hub.weight_scheme import UNQUANTISED, WeightScheme
from kvasir.layers.adapter_slots import AdapterSlots
from kvasir.layers.layout import WHOLE, Layout, Part, Split
from kvasir.parallel.parallel_state import SINGLE, ParallelState

T = TypeVar("T")
_FLOATS: Final = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class Placement:
    device: torch.device
    dtype: torch.dtype
    parallel: ParallelState = SINGLE
    batch_invariant: bool = False  # a row's bits do not depend on other rows
    name: str = ""  # in named_modules(); "" is the model
    scheme: WeightScheme = UNQUANTISED
    renamed: Mapping[str, str] = field(default_factory=dict)  # parts of names: here → in the checkpoint
    adapters: AdapterSlots | None = None  # None: no layer takes LoRA adapters

    def at(self, part: str) -> "Placement":
        return replace(self, name=f"{self.name}.{part}" if self.name else part)


class Source(Protocol):
    """A tensor of a checkpoint or of torch, which can be read in parts."""

    @property
    def shape(self) -> Sequence[int]: ...

    def __getitem__(self, part: Part, /) -> Tensor: ...


class WeightLoader(Protocol):
    @property
    def missing(self) -> set[str]: ...  # shards that no tensor has filled yet

    def __call__(self, parameter: nn.Parameter, source: Source, shard: str, index: int | None = None) -> None:
        """Read this rank's part of a shard; `index` selects one of stacked layers.

        Raises ValueError for a wrong shape or type, or a shard that came before.
        """
        ...

    def parts(self, shard: str, index: int | None = None) -> list[Part]: ...  # of the source


class TensorLoader:
    """Copies tensors. Floats are converted; other dtypes must match. Threads may fill different shards at once.

    `transposed`: the checkpoint stores [in, out] (GPT-2's Conv1D).
    """

    def __init__(self, layout: Layout, transposed: bool = False) -> None:
        self._layout = layout
        self._transposed = transposed and len(layout.shape) == 2
        self.missing: set[str] = set(layout.shards)
        self._lock = threading.Lock()

    def __call__(self, parameter: nn.Parameter, source: Source, shard: str, index: int | None = None) -> None:
        self.fill(parameter.data, source, shard)

    def parts(self, shard: str, index: int | None = None) -> list[Part]:
        return [self._turned(part) for part, _ in self._layout.places(shard)]

    def fill(self, target: Tensor, source: Source, shard: str) -> None:
        self._claim(shard)
        expected = self._turned(self._layout.shape_of(shard))
        if tuple(source.shape) != expected:
            raise ValueError(f"its shape is {list(source.shape)} and the model has {list(expected)}")
        for part, filled in self._layout.places(shard):
            piece = source[self._turned(part)]
            _check_type(piece.dtype, target.dtype)
            _copy_padded(target[filled], piece.t() if self._transposed else piece)

    def _claim(self, shard: str) -> None:
        shards = set(self._layout.shards) if shard == WHOLE else {shard}
        with self._lock:
            if not shards <= self.missing:
                raise ValueError("it was loaded before")
            self.missing -= shards

    def _turned(self, dims: tuple[T, ...]) -> tuple[T, ...]:
        return dims[::-1] if self._transposed else dims


class OneOf:
    """One layer of a tensor that stacks equal layers."""

    def __init__(self, stacked: Source, index: int) -> None:
        self.shape = tuple(stacked.shape[1:])
        self._stacked, self._place = stacked, slice(index, index + 1)

    def __getitem__(self, part: Part, /) -> Tensor:
        return self._stacked[(self._place, *part)][0]


class _Turned:
    """A matrix whose dimensions the checkpoint reverses."""

    def __init__(self, source: Source) -> None:
        self.shape = tuple(source.shape[::-1])
        self._source = source

    def __getitem__(self, part: Part, /) -> Tensor:
        return self._source[part[::-1]].t()


class _Alternating:
    """A tensor whose shards of equal size alternate in dimension 0: gate, up, gate, up, …"""

    def __init__(self, source: Source, shards: int) -> None:
        self.shape = tuple(source.shape)
        self._source, self._shards = source, shards

    def __getitem__(self, part: Part, /) -> Tensor:  # within a shard
        size = self.shape[0] // self._shards
        shard, begin = divmod(part[0].start, size)
        length = part[0].stop - part[0].start
        read = slice(begin * self._shards, (begin + length) * self._shards)
        return self._source[(read, *part[1:])][shard :: self._shards]


class StackedLoader:
    """Fills a parameter that stacks equal layers, from a tensor of each layer or from one of all.

    In a tensor of all layers, `transposed` ones are [layers, inputs, outputs], and shards may alternate. Without
    `transposed`, the shape of the tensor decides: some models have both forms.
    """

    def __init__(
        self,
        layout: Layout,
        count: int,
        own: range,
        loader: Callable[[Layout], TensorLoader] = TensorLoader,
        *,
        transposed: bool = False,
        alternating: bool = False,
    ) -> None:
        self._count = count
        self._first = own.start
        self._loaders = {index: loader(layout) for index in own}
        self._layout = layout
        self._transposed = transposed and len(layout.shape) == 2
        self._shards = len(layout.shards) if alternating else 1

    @property
    def missing(self) -> set[str]:
        return {f"{index} {shard}".strip() for index, loader in self._loaders.items() for shard in loader.missing}

    def __call__(self, parameter: nn.Parameter, source: Source, shard: str, index: int | None = None) -> None:
        if index is None:
            self._fill_all(parameter, source, shard)
            return
        if not 0 <= index < self._count:
            raise ValueError(f"the model has the numbers 0 to {self._count - 1} here")
        if index in self._loaders:
            self._loaders[index].fill(parameter.data[index - self._first], source, shard)

    def _fill_all(self, parameter: nn.Parameter, source: Source, shard: str) -> None:
        if not source.shape or source.shape[0] != self._count:
            raise ValueError(f"its shape is {list(source.shape)} and the model stacks {self._count} layers here")
        for index, loader in self._loaders.items():
            one: Source = OneOf(source, index)
            if self._transposed or self._is_turned(one):
                one = _Turned(one)
            if self._shards > 1 and shard == WHOLE:
                one = _Alternating(one, self._shards)
            loader.fill(parameter.data[index - self._first], one, shard)

    def _is_turned(self, one: Source) -> bool:
        shape = self._layout.shape
        return len(shape) == 2 and tuple(one.shape) == shape[::-1] != shape

    def parts(self, shard: str, index: int | None = None) -> list[Part]:
        if index is None:  # all layers are split in the same way
            index = self._first
        return self._loaders[index].parts(shard) if index in self._loaders else []


def _check_type(given: torch.dtype, taken: torch.dtype) -> None:
    if taken not in _FLOATS and given != taken:
        raise ValueError(f"it is {given} and must be {taken}")
    if taken in _FLOATS and given not in _FLOATS:
        raise ValueError(
            f"it is {given}, and config.json has no quantization_config for it: use the quantised model's own "
            "config.json, or the model's float32, bfloat16 or float16 version"
        )


def _copy_padded(target: Tensor, piece: Tensor) -> None:
    if target.shape == piece.shape:
        target.copy_(piece)
        return
    target.zero_()
    target[tuple(slice(0, size) for size in piece.shape)].copy_(piece)


def new_parameter(*shape: int, placement: Placement, split: Split | None = None) -> nn.Parameter:
    # `shape` is the whole; the parameter has this rank's part.
    layout = Layout(shape, split=split)
    return parameter_with(TensorLoader(layout), layout.local_shape, placement)


def parameter_with(
    loader: WeightLoader, shape: Sequence[int], placement: Placement, dtype: torch.dtype | None = None
) -> nn.Parameter:
    empty = torch.empty(tuple(shape), dtype=dtype or placement.dtype, device=placement.device)
    parameter = nn.Parameter(empty, requires_grad=False)
    parameter.weight_loader = loader  # type: ignore[attr-defined]
    return parameter


def weight_loader_of(parameter: nn.Parameter) -> WeightLoader:
    loader: WeightLoader = parameter.weight_loader  # type: ignore[attr-defined]
    return loader
