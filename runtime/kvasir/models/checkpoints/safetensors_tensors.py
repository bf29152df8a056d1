"""Tensors of a safetensors file."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from kvasir.layers.layout import Part
from kvasir.models.checkpoints.checkpoint import CheckpointTensor, Origin
from kvasir.models.model_load_error import ModelLoadError


@contextmanager
def safetensors_tensors(file: Path) -> Iterator[list[CheckpointTensor]]:
    with _readable(file), safe_open(file, framework="pt", device="cpu") as checkpoint:
        yield [SafetensorsTensor(Origin(name, file), checkpoint) for name in checkpoint.keys()]  # noqa: SIM118


class SafetensorsTensor:
    def __init__(self, origin: Origin, checkpoint: Any) -> None:
        self.origin = origin
        self._slice = checkpoint.get_slice(origin.name)
        self.shape: tuple[int, ...] = tuple(self._slice.get_shape())
        itemsize: int = self._slice[:0].itemsize if self.shape else 4
        self.nbytes = math.prod(self.shape) * itemsize

    def __getitem__(self, part: Part, /) -> Tensor:
        with _readable(self.origin.file):
            piece: Tensor = self._slice[part]
            return piece


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{file} cannot be read as safetensors: {error}. Fetch it again") from error
