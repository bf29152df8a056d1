"""Numbers, scales and zeros of blocks of a GGUF file, as a quantised layer takes them."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvasir.hub.gguf.kept_layers import FORMATS
from kvasir.hub.quantisation.layer_formats import Nibbles, Numbers
from kvasir.layers.layout import Part
from kvasir.models.checkpoints.checkpoint import CheckpointTensor, Origin
from kvasir.models.checkpoints.gguf_rows import Rows

_Array = NDArray[Any]
_Blocks = NDArray[np.uint8]  # [rows, blocks, bytes]
# numbers [rows, inputs], scales [rows, groups], and zeros like scales or None
_Unpacked = tuple[_Array, _Array, _Array | None]


def kept_tensors(
    layer: str, file: Path, shape: tuple[int, ...], num_bytes: int, rows: Rows
) -> Iterator[CheckpointTensor]:
    """Yield the parameters of a layer, by the names in kvasir.layers.quantised."""
    outputs, inputs = shape
    form = FORMATS[rows.kind]
    assert isinstance(form, Numbers | Nibbles)
    group = form.block[1] if isinstance(form, Numbers) else form.group
    width = inputs if isinstance(form, Numbers) else inputs // 2
    yield _Part(Origin(f"{layer}.weight", file), (outputs, width), num_bytes, rows, 0)
    yield _Part(Origin(f"{layer}.weight_scale", file), (outputs, inputs // group), 0, rows, 1)
    if isinstance(form, Nibbles) and form.zeros:
        yield _Part(Origin(f"{layer}.weight_zero", file), (outputs, inputs // group), 0, rows, 2)


class _Part:
    def __init__(self, origin: Origin, shape: tuple[int, ...], nbytes: int, rows: Rows, place: int) -> None:
        self.origin, self.shape, self.nbytes = origin, shape, nbytes
        self._rows, self._place = rows, place

    def __getitem__(self, part: Part, /) -> Tensor:
        rows, columns = part
        blocks = self._rows.blocks(rows)
        array = unpacked(blocks, self._rows.kind)[self._place]
        assert array is not None
        if self._place == 0 and isinstance(FORMATS[self._rows.kind], Nibbles):
            array = array[:, 0::2] | (array[:, 1::2] << 4)
        return torch.from_numpy(np.ascontiguousarray(array))[:, columns]


def unpacked(blocks: NDArray[np.uint8], kind: str) -> _Unpacked:  # [rows, bytes]
    size, unpack = _UNPACK[kind]
    numbers, scales, zeros = unpack(np.array(blocks).reshape(len(blocks), -1, size))
    rows = len(blocks)
    return numbers.reshape(rows, -1), scales.reshape(rows, -1), None if zeros is None else zeros.reshape(rows, -1)


def _half(blocks: _Blocks, start: int) -> _Array:  # float16 at a byte of each block → float32 [rows, blocks, 1]
    return np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: _Array) -> _Array:  # the first half of the weights is in the low bits
    return np.concatenate((packed & 15, packed >> 4), axis=-1)


def _q8_0(blocks: _Blocks) -> _Unpacked:
    return np.ascontiguousarray(blocks[..., 2:]).view(np.int8), _half(blocks, 0), None


def _q5_0(blocks: _Blocks) -> _Unpacked:
    fifth = np.unpackbits(blocks[..., 2:6], axis=-1, bitorder="little")
    return (_nibbles(blocks[..., 6:]) | (fifth << 4)).astype(np.int8) - 16, _half(blocks, 0), None


def _q4_0(blocks: _Blocks) -> _Unpacked:
    return _nibbles(blocks[..., 2:]), _half(blocks, 0), None


def _q4_1(blocks: _Blocks) -> _Unpacked:
    return _with_minimum(_nibbles(blocks[..., 4:]), _half(blocks, 0), -_half(blocks, 2))


def _q4_k(blocks: _Blocks) -> _Unpacked:
    packed = blocks[..., 4:16].reshape(*blocks.shape[:2], 3, 4)
    low, high, rest = packed[..., 0, :], packed[..., 1, :], packed[..., 2, :]
    scales = np.concatenate((low & 63, (rest & 15) | ((low >> 6) << 4)), axis=-1)  # [rows, blocks, 8]
    minima = np.concatenate((high & 63, (rest >> 4) | ((high >> 6) << 4)), axis=-1)
    numbers = _nibbles(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32))
    numbers = numbers.reshape(*blocks.shape[:2], 8, 32)
    return _with_minimum(numbers, _half(blocks, 0) * scales, _half(blocks, 2) * minima)


def _q6_k(blocks: _Blocks) -> _Unpacked:
    halves = blocks.shape[:2]
    low = _nibbles(blocks[..., :128].reshape(*halves, 2, 64))
    high = blocks[..., 128:192].reshape(*halves, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    numbers = low | ((high & 3).reshape(*halves, 2, 128) << 4)
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8) * _half(blocks, 208)
    return numbers.astype(np.int8) - 32, scales, None


def _with_minimum(numbers: _Array, scales: _Array, minima: _Array) -> _Unpacked:
    # number * scale - minimum = (number - zero) * scale; without a scale all weights of a group are -minimum
    flat = scales == 0
    scales = np.where(flat, 1, scales)
    wide = flat[..., None] if numbers.ndim > scales.ndim else flat
    return np.where(wide, 0, numbers).astype(np.uint8), scales, minima / scales


_UNPACK: Final[Mapping[str, tuple[int, Callable[[_Blocks], _Unpacked]]]] = MappingProxyType(
    {
        "Q8_0": (34, _q8_0),
        "Q6_K": (210, _q6_k),
        "Q5_0": (22, _q5_0),
        "Q4_0": (18, _q4_0),
        "Q4_1": (20, _q4_1),
        "Q4_K": (144, _q4_k),
        "IQ4_NL": (18, _q4_0),
    }
)
