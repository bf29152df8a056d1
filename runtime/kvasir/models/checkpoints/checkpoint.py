"""A tensor of a checkpoint, of which ranks read the parts that they need."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from kvasir.layers.layout import Part


@dataclass(frozen=True)
class Origin:
    name: str
    file: Path

    def __str__(self) -> str:
        return f"tensor {self.name!r} in {self.file}"


class CheckpointTensor(Protocol):
    @property
    def origin(self) -> Origin: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def nbytes(self) -> int: ...  # in the file, for progress

    def __getitem__(self, part: Part, /) -> Tensor: ...
