"""The parts of a checkpoint's tensors that a rank holds."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

NO_COPIES: Final = MappingProxyType[str, int]({})

WHOLE: Final = ""  # fills all shards of a parameter

Part = tuple[slice, ...]


class Split(NamedTuple):
    """Part `rank` of `size` equal parts of a dimension. Zeros pad the last parts."""

    dim: int
    rank: int
    size: int

    def local(self, whole: int) -> int:
        return -(-whole // self.size)

    def range_of(self, whole: int) -> slice:
        """Return the range without padding.

        >>> Split(0, rank=2, size=3).range_of(7)
        slice(6, 7, None)
        """
        begin = self.rank * self.local(whole)
        return slice(min(begin, whole), min(begin + self.local(whole), whole))

    def shared_by(self, copies: int) -> "Split":
        # Neighbouring ranks hold the same part.
        return Split(self.dim, self.rank // copies, self.size // copies)


class Layout:
    """The shape of a parameter, its shards and the part that this rank holds.

    A shard (q, k or v) is a range of `shard_dim`. A split applies to each shard.
    `copies`: ranks with the same part of a shard, by default 1.
    `groups`: a tensor of all shards has the first part of each, then the second of each, and so on.
    """

    def __init__(
        self,
        shape: Sequence[int],
        shards: Mapping[str, int] | None = None,
        split: Split | None = None,
        copies: Mapping[str, int] = NO_COPIES,
        *,
        shard_dim: int = 0,
        groups: int = 1,
    ) -> None:
        self.shape = tuple(shape)
        self.shards = dict(shards or {WHOLE: shape[shard_dim]})
        self.split = None if split is None or split.size == 1 else split
        self._copies = copies
        self._shard_dim = shard_dim
        self._groups = groups

    @property
    def local_shape(self) -> tuple[int, ...]:
        split = self.split
        if split is None:
            return self.shape
        if split.dim == self._shard_dim:
            return self._with_length(sum(map(self._local_length, self.shards)))
        return tuple(split.local(size) if dim == split.dim else size for dim, size in enumerate(self.shape))

    @property
    def local_shards(self) -> dict[str, int]:
        return {shard: self._local_length(shard) for shard in self.shards}

    def places(self, shard: str) -> Iterator[tuple[Part, Part]]:
        """Yield the parts of a shard's tensor to read, and of the parameter to fill with padding."""
        whole_start, local_start = 0, 0
        for name, size in self.shards.items():
            length = self._local_length(name)
            if shard == WHOLE and self._groups > 1:
                yield from self._places_in_groups(name, whole_start, local_start)
            elif shard in (WHOLE, name):
                source = self._read(name, whole_start if shard == WHOLE else 0)
                yield source, self._filled(local_start, length)
            whole_start += size
            local_start += length

    def _places_in_groups(self, shard: str, whole_start: int, local_start: int) -> Iterator[tuple[Part, Part]]:
        # The rank's range of the shard, cut where the group ends.
        source = list(self._read(shard, 0))
        own = source[self._shard_dim]
        part, group = self.shards[shard] // self._groups, self.shape[self._shard_dim] // self._groups
        start: int = own.start
        while start < own.stop:
            index, offset = divmod(start, part)
            length = min(part - offset, own.stop - start)
            first = index * group + whole_start // self._groups + offset
            source[self._shard_dim] = slice(first, first + length)
            yield tuple(source), self._filled(local_start + start - own.start, length)
            start += length

    def _filled(self, start: int, length: int) -> Part:
        return (*(slice(None),) * self._shard_dim, slice(start, start + length))

    def shape_of(self, shard: str) -> tuple[int, ...]:
        return self.shape if shard == WHOLE else self._with_length(self.shards[shard])

    def _with_length(self, length: int) -> tuple[int, ...]:
        return (*self.shape[: self._shard_dim], length, *self.shape[self._shard_dim + 1 :])

    def _split_of(self, shard: str) -> Split | None:
        return None if self.split is None else self.split.shared_by(self._copies.get(shard, 1))

    def _local_length(self, shard: str) -> int:
        split, size = self._split_of(shard), self.shards[shard]
        return size if split is None or split.dim != self._shard_dim else split.local(size)

    def _read(self, shard: str, start: int) -> Part:
        split = self._split_of(shard)
        ranges = [
            split.range_of(length) if split is not None and dim == split.dim else slice(0, length)
            for dim, length in enumerate(self._with_length(self.shards[shard]))
        ]
        in_shard = ranges[self._shard_dim]
        ranges[self._shard_dim] = slice(in_shard.start + start, in_shard.stop + start)
        return tuple(ranges)
