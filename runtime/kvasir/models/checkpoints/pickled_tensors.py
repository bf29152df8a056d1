"""Tensors of a pytorch_model.bin. Only tensors are unpickled, and unused parts stay on disk."""

import pickle
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from kvasir.layers.layout import Part
from kvasir.models.checkpoints.checkpoint import CheckpointTensor, Origin
from kvasir.models.model_load_error import ModelLoadError


@contextmanager
def pickled_tensors(file: Path) -> Iterator[list[CheckpointTensor]]:
    tensors: list[CheckpointTensor] = []
    counted: set[int] = set()
    for name, tensor in _load(file).items():
        if not isinstance(tensor, Tensor):
            raise ModelLoadError(f"{file} holds {name!r}, which is not a tensor: it is not the weights of a model")
        storage = tensor.untyped_storage()
        # Tied tensors share a storage.
        num_bytes = 0 if storage.data_ptr() in counted else storage.nbytes()
        counted.add(storage.data_ptr())
        tensors.append(_Tensor(Origin(str(name), file), tensor, num_bytes))
    yield tensors


class _Tensor:
    def __init__(self, origin: Origin, tensor: Tensor, num_bytes: int) -> None:
        self.origin = origin
        self.shape: tuple[int, ...] = tuple(tensor.shape)
        self.nbytes = num_bytes
        self._tensor = tensor

    def __getitem__(self, part: Part, /) -> Tensor:
        return self._tensor[part]


def _load(file: Path) -> Mapping[str, object]:
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
