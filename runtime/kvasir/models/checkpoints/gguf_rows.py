"""Rows of a tensor in a GGUF file, dequantised when they are read."""

from copy import copy
from types import MappingProxyType
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvasir.hub.gguf.gguf_file import TYPES, GGUFTensor
from kvasir.models.model_load_error import ModelLoadError

PLAIN: Final = MappingProxyType({"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16})
_BYTES_OF_BLOCK: Final = MappingProxyType({name: (block, size) for name, block, size in TYPES.values()})
# More at a time do not fit into the cache of a core, and take three times as long.
_MAX_WEIGHTS: Final = 2**18


class Rows:
    """The rows of a tensor in the file, or some of them in another order."""

    def __init__(self, tensor: GGUFTensor, content: NDArray[np.uint8]) -> None:
        block, block_bytes = _BYTES_OF_BLOCK[tensor.type]
        self.kind = tensor.type
        end = tensor.start + tensor.num_bytes
        self._bytes = content[tensor.start : end].reshape(-1, tensor.shape[-1] // block * block_bytes)
        self._order: NDArray[np.int64] | None = None

    def section(self, start: int, count: int) -> "Rows":
        other = copy(self)
        other._bytes = self._bytes[start : start + count]
        return other

    def in_order(self, order: NDArray[np.int64]) -> "Rows":
        other = copy(self)
        # a bias is one row of the file
        other._bytes = self._bytes.reshape(len(order), -1)
        other._order = order
        return other

    def blocks(self, part: slice) -> NDArray[np.uint8]:  # [rows, bytes]
        return self._bytes[part if self._order is None else self._order[part]]

    def floats(self, part: slice) -> Tensor:  # [rows, inputs]
        blocks = self.blocks(part)
        if self.kind in PLAIN:
            return torch.from_numpy(np.array(blocks)).view(PLAIN[self.kind])
        block, block_bytes = _BYTES_OF_BLOCK[self.kind]
        inputs = blocks.shape[1] // block_bytes * block
        floats = torch.empty(len(blocks), inputs)
        step = max(1, _MAX_WEIGHTS // inputs)
        for start in range(0, len(blocks), step):
            some = _dequantised(np.array(blocks[start : start + step]), self.kind)
            floats[start : start + step] = torch.from_numpy(some)
        return floats


def _dequantised(data: NDArray[np.uint8], kind: str) -> NDArray[np.float32]:
    try:
        import gguf
    except ImportError as error:
        raise ModelLoadError(
            f"the weights are in GGUF, and the package that reads it is not there ({error}): pip install gguf"
        ) from error
    floats: NDArray[np.float32] = gguf.dequantize(data, gguf.GGMLQuantizationType[kind])
    return floats
