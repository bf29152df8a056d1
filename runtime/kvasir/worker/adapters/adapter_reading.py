"""AdapterReading: an adapter's files, read in pieces of some milliseconds."""

import time
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from kvasir.hub.adapters.adapter_config import read_config
from kvasir.hub.adapters.adapter_tensors import WEIGHTS_FILE, read_modules, tensor_name
from kvasir.layers.adapters.adapter_matrices import AdapterMatrices, AdapterPart, matrices_of
from kvasir.layers.layout import WHOLE
from kvasir.worker.adapters.adapted_layers import AdaptedLayers, UnfitAdapter


class AdapterReading:
    """Raises HubError for broken files and UnfitAdapter for those of another model."""

    def __init__(self, path: Path, layers: AdaptedLayers) -> None:
        self._layers = layers
        self._modules = read_modules(path, read_config(path))
        self._left: dict[str, list[tuple[str, str]]] = {}  # by layer: shard and module
        for module in self._modules:
            if (target := layers.place(module)) is not None:
                self._left.setdefault(target.parameter, []).append((target.shard, module))
        for parts in self._left.values():
            _refuse_overlap(parts)
        self._file: Any = safe_open(path / WEIGHTS_FILE, framework="pt")
        self.matrices: dict[str, AdapterMatrices] = {}  # by layer

    def advance(self, seconds: float) -> bool:
        """Read a layer, and more for about this long. Return whether it is complete."""
        end = time.monotonic() + seconds
        while self._left:
            layer, parts = self._left.popitem()
            try:
                self.matrices[layer] = self._read(layer, parts)
            except SafetensorError as error:
                raise UnfitAdapter(f"its weights cannot be read: {error}") from error
            except ValueError as error:
                names = ", ".join(module for _, module in parts)
                raise UnfitAdapter(f"{names} does not fit: {error}; is it an adapter of another model?") from error
            if time.monotonic() >= end:
                break
        return not self._left

    def _read(self, layer: str, parts: list[tuple[str, str]]) -> AdapterMatrices:
        read = [
            AdapterPart(
                shard,
                self._modules[module].scaling,
                self._tensor(module, "A"),
                self._tensor(module, "B"),
            )
            for shard, module in parts
        ]
        method = self._layers.methods[layer]
        return matrices_of(method.shape, read, method.dtype)

    def _tensor(self, module: str, part: str) -> Tensor:
        tensor: Tensor = self._file.get_tensor(tensor_name(module, part))
        return tensor


def _refuse_overlap(parts: list[tuple[str, str]]) -> None:
    shards = [shard for shard, _ in parts]
    if len(set(shards)) < len(parts) or (WHOLE in shards and len(parts) > 1):
        names = ", ".join(module for _, module in parts)
        raise UnfitAdapter(f"it adapts the same layer of this model more than once: {names}")
