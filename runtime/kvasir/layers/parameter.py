"""Parameters that know how checkpoint tensors fill them.

Every parameter is allocated without initialisation and carries a `weight_loader`; `kvasir.models.loader` calls it
for each tensor of the checkpoint and asks at the end for the parts that are missing.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from kvasir.parallel.parallel_state import SINGLE, ParallelState

T = TypeVar("T")
_FLOATS: Final = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_NO_COPIES: Final = MappingProxyType[str, int]({})

WHOLE: Final = ""
"""The shard of a tensor that fills all shards of its parameter."""


@dataclass(frozen=True)
class Placement:
    """Where and in which precision a layer's parameters live, and the name of the layer."""

    device: torch.device
    dtype: torch.dtype
    parallel: ParallelState = SINGLE
    batch_invariant: bool = False
    """Compute so that the bits of a row do not depend on the other rows of a step."""
    name: str = ""
    """As in named_modules(): layers.0.mlp for example; "" is the model."""

    def at(self, part: str) -> "Placement":
        """Return the placement of a part of this layer."""
        return replace(self, name=f"{self.name}.{part}" if self.name else part)


class Split(NamedTuple):
    """The part of a dimension that a rank holds: the `rank`-th of `size` equal ones.

    If the dimension is not a multiple of `size`, the last parts are filled up with zeros.
    """

    dim: int
    rank: int
    size: int

    def local(self, whole: int) -> int:
        """Return the length of a part, with its padding."""
        return -(-whole // self.size)

    def range_of(self, whole: int) -> slice:
        """Return the part's range, without its padding."""
        begin = self.rank * self.local(whole)
        return slice(min(begin, whole), min(begin + self.local(whole), whole))

    def shared_by(self, copies: int) -> "Split":
        """Return the split in which so many neighbouring ranks hold the same part."""
        return Split(self.dim, self.rank // copies, self.size // copies)


class Layout:
    """The shape of a parameter, its shards and the part of it that this rank holds.

    A shard is a range of the first dimension, so that projections which read the same input (q, k, v; gate, up) are
    one parameter and one matrix product. A split applies to each shard. `copies` maps a shard to the number of
    ranks that hold the same part of it; others have 1.
    """

    def __init__(
        self,
        shape: Sequence[int],
        shards: Mapping[str, int] | None = None,
        split: Split | None = None,
        copies: Mapping[str, int] = _NO_COPIES,
    ) -> None:
        self.shape = tuple(shape)
        self.shards = dict(shards or {WHOLE: shape[0]})
        self.split = None if split is None or split.size == 1 else split
        self._copies = copies

    @property
    def local_shape(self) -> tuple[int, ...]:
        split = self.split
        if split is None:
            return self.shape
        if split.dim == 0:
            return (sum(map(self._local_rows, self.shards)), *self.shape[1:])
        return tuple(split.local(size) if dim == split.dim else size for dim, size in enumerate(self.shape))

    def places(self, shard: str) -> Iterator[tuple[tuple[slice, ...], slice]]:
        """Yield the parts of a shard's tensor (or of the whole) that this rank reads, and the rows that each fills.

        The rows include the padding, which has no source.
        """
        whole_row, local_row = 0, 0
        for name, size in self.shards.items():
            rows = self._local_rows(name)
            if shard in (WHOLE, name):
                yield self._read(name, whole_row if shard == WHOLE else 0), slice(local_row, local_row + rows)
            whole_row += size
            local_row += rows

    def shape_of(self, shard: str) -> tuple[int, ...]:
        """Return the shape of the tensor that fills a shard."""
        return self.shape if shard == WHOLE else (self.shards[shard], *self.shape[1:])

    def _split_of(self, shard: str) -> Split | None:
        return None if self.split is None else self.split.shared_by(self._copies.get(shard, 1))

    def _local_rows(self, shard: str) -> int:
        split, size = self._split_of(shard), self.shards[shard]
        return size if split is None or split.dim != 0 else split.local(size)

    def _read(self, shard: str, start: int) -> tuple[slice, ...]:
        split = self._split_of(shard)
        lengths = (self.shards[shard], *self.shape[1:])
        ranges = [
            split.range_of(length) if split is not None and dim == split.dim else slice(0, length)
            for dim, length in enumerate(lengths)
        ]
        return (slice(ranges[0].start + start, ranges[0].stop + start), *ranges[1:])


class Source(Protocol):
    """A tensor of which parts can be read: one of a checkpoint, or a torch tensor."""

    @property
    def shape(self) -> Sequence[int]: ...

    def __getitem__(self, part: tuple[slice, ...], /) -> Tensor: ...


class WeightLoader(Protocol):
    """Fills a parameter from checkpoint tensors."""

    @property
    def missing(self) -> set[str]:
        """The shards that no tensor has filled yet."""
        ...

    def __call__(self, parameter: nn.Parameter, source: Source, shard: str, index: int | None = None) -> None:
        """Read this rank's part of a shard; `index` selects one of stacked layers.

        Raises ValueError for a shape or type that does not fit or a shard that came before.
        """
        ...

    def parts(self, shard: str, index: int | None = None) -> list[tuple[slice, ...]]:
        """Return the parts of the source that this rank reads."""
        ...


class FloatLoader:
    """Copies floats, converted to the parameter's type.

    Threads may fill different shards at the same time. `transposed`: the checkpoint stores [in, out] (GPT-2's
    Conv1D).
    """

    def __init__(self, layout: Layout, transposed: bool) -> None:
        self._layout = layout
        self._transposed = transposed and len(layout.shape) == 2
        self.missing: set[str] = set(layout.shards)
        self._lock = threading.Lock()

    def __call__(self, parameter: nn.Parameter, source: Source, shard: str, index: int | None = None) -> None:
        self.fill(parameter.data, source, shard)

    def parts(self, shard: str, index: int | None = None) -> list[tuple[slice, ...]]:
        return [self._turned(part) for part, _ in self._layout.places(shard)]

    def fill(self, target: Tensor, source: Source, shard: str) -> None:
        """Fill a parameter's values, or those of one of stacked layers. Raises ValueError as above."""
        self._claim(shard)
        expected = self._turned(self._layout.shape_of(shard))
        if tuple(source.shape) != expected:
            raise ValueError(f"its shape is {list(source.shape)} and the model has {list(expected)}")
        for part, rows in self._layout.places(shard):
            piece = source[self._turned(part)]
            if piece.dtype not in _FLOATS:
                raise ValueError(
                    f"it is {piece.dtype}, and quantised checkpoints are not supported: "
                    "use the model's float32, bfloat16 or float16 one"
                )
            _copy_padded(target[rows], piece.t() if self._transposed else piece)

    def _claim(self, shard: str) -> None:
        shards = set(self._layout.shards) if shard == WHOLE else {shard}
        with self._lock:
            if not shards <= self.missing:
                raise ValueError("it was loaded before")
            self.missing -= shards

    def _turned(self, dims: tuple[T, ...]) -> tuple[T, ...]:
        return dims[::-1] if self._transposed else dims


class StackedLoader:
    """Fills a parameter that stacks equal layers [layers, ...], of which this rank holds a range."""

    def __init__(self, layout: Layout, count: int, own: range) -> None:
        self._count = count
        self._first = own.start
        self._loaders = {index: FloatLoader(layout, transposed=False) for index in own}

    @property
    def missing(self) -> set[str]:
        return {f"{index} {shard}".strip() for index, loader in self._loaders.items() for shard in loader.missing}

    def __call__(self, parameter: nn.Parameter, source: Source, shard: str, index: int | None = None) -> None:
        if index is None or not 0 <= index < self._count:
            raise ValueError(f"the model has the numbers 0 to {self._count - 1} here")
        if index in self._loaders:
            self._loaders[index].fill(parameter.data[index - self._first], source, shard)

    def parts(self, shard: str, index: int | None = None) -> list[tuple[slice, ...]]:
        if index is None:  # all layers are split alike
            index = self._first
        return self._loaders[index].parts(shard) if index in self._loaders else []


def _copy_padded(target: Tensor, piece: Tensor) -> None:
    """Copy a piece to the beginning of the target; fill the rest with zeros."""
    if target.shape == piece.shape:
        target.copy_(piece)
        return
    target.zero_()
    target[tuple(slice(0, size) for size in piece.shape)].copy_(piece)


def new_parameter(
    *shape: int,
    placement: Placement,
    shards: Mapping[str, int] | None = None,
    split: Split | None = None,
    copies: Mapping[str, int] = _NO_COPIES,
    transposed: bool = False,
) -> nn.Parameter:
    """Return an uninitialised parameter: this rank's part of the whole `shape`.

    `shards` maps the names of its row ranges to their sizes, in order; see Layout for `split` and `copies`.
    """
    layout = Layout(shape, shards, split, copies)
    return parameter_with(FloatLoader(layout, transposed), layout.local_shape, placement)


def parameter_with(loader: WeightLoader, shape: Sequence[int], placement: Placement) -> nn.Parameter:
    """Return an uninitialised parameter that this loader fills."""
    empty = torch.empty(tuple(shape), dtype=placement.dtype, device=placement.device)
    parameter = nn.Parameter(empty, requires_grad=False)
    parameter.weight_loader = loader  # type: ignore[attr-defined]
    return parameter


def weight_loader_of(parameter: nn.Parameter) -> WeightLoader:
    loader: WeightLoader = parameter.weight_loader  # type: ignore[attr-defined]
    return loader
