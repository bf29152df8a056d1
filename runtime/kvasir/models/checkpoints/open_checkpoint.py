"""Opens a file with weights, by its suffix: safetensors, pytorch_model.bin or GGUF."""

import math
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kvasir.hub.weight_scheme import UNQUANTISED, WeightScheme
from kvasir.layers.layout import Part
from kvasir.models.checkpoints.checkpoint import CheckpointTensor, Origin
from kvasir.models.checkpoints.gguf_tensors import gguf_tensors
from kvasir.models.model_load_error import ModelLoadError


def open_checkpoint(
    file: Path, scheme: WeightScheme = UNQUANTISED
) -> AbstractContextManager[list[CheckpointTensor]]:
    """Raises ModelLoadError for a file that is unreadable."""
    if file.suffix == ".gguf":
        return gguf_tensors(file, scheme)
    return _pickled_tensors(file) if file.suffix == ".bin" else _safetensors_tensors(file)


@contextmanager
def _safetensors_tensors(file: Path) -> Iterator[list[CheckpointTensor]]:
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


# Only tensors are unpickled, and unused parts stay on disk.
@contextmanager
def _pickled_tensors(file: Path) -> Iterator[list[CheckpointTensor]]:
    tensors: list[CheckpointTensor] = []
    counted: set[int] = set()
    for name, tensor in _unpickled(file).items():
        if not isinstance(tensor, Tensor):
            raise ModelLoadError(f"{file} holds {name!r}, which is not a tensor: it is not the weights of a model")
        storage = tensor.untyped_storage()
        # Tied tensors share a storage.
        num_bytes = 0 if storage.data_ptr() in counted else storage.nbytes()
        counted.add(storage.data_ptr())
        tensors.append(_PickledTensor(Origin(str(name), file), tensor, num_bytes))
    yield tensors


class _PickledTensor:
    def __init__(self, origin: Origin, tensor: Tensor, num_bytes: int) -> None:
        self.origin = origin
        self.shape: tuple[int, ...] = tuple(tensor.shape)
        self.nbytes = num_bytes
        self._tensor = tensor

    def __getitem__(self, part: Part, /) -> Tensor:
        return self._tensor[part]


def _unpickled(file: Path) -> Mapping[str, object]:
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except pickle.UnpicklingError as error:
        raise ModelLoadError(
            f"{file} holds more than tensors and is not loaded, because that may run code: save the state_dict of "
            f"the model as safetensors ({str(error).splitlines()[0]})"
        ) from error
    except Exception as error:  # whatever a broken pickle raises
        raise ModelLoadError(f"{file} cannot be read: {' '.join(str(error).split())}. Fetch it again") from error
    if not isinstance(loaded, Mapping):
        raise ModelLoadError(f"{file} holds a {type(loaded).__name__}, not the tensors of a model by name")
    return loaded
