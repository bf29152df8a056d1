"""Products with quantised weights: packs them once, in the order in which `packed.inc` reads them."""

import ctypes
import functools
from ctypes import c_int, c_int32, c_int64, c_void_p
from types import MappingProxyType
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir.kernels.cpu import Kernels

MIN_BLOCK: Final = 16  # inputs of a group, or their part with sums in registers
MAX_BLOCK: Final = 128
MAX_BYTES_INPUTS: Final = 2**17  # int8 times int8: the sum fits 32 bits
_STEP: Final = 8  # inputs; blocks are multiples

# In the order of packed.inc.
_KINDS: Final = MappingProxyType({torch.uint8: 0, torch.int8: 1, torch.float8_e4m3fn: 2})
_INT4, _FLOAT8, _BYTES = 0, 2, 3
_TYPES: Final = (None, torch.float32, torch.float16, torch.bfloat16, torch.int8)  # of scales and zeros
_FLOAT8_UNIT: Final = 2.0**8  # the kernel's numbers are smaller


class _Packed(ctypes.Structure):
    """`struct packed` of packed.inc."""

    _fields_ = (
        *((name, c_void_p) for name in ("x", "order", "rows_of_x", "sums", "row_scales", "weight", "table", "out")),
        *((name, c_int64) for name in ("rows", "inputs", "outputs", "block")),
        *((name, c_int32) for name in ("kind", "scales", "zeros", "whole", "is_bf16")),
    )


class PackedProduct:
    """The product with a weight [outputs, inputs] of 4 or 8 bits. The arguments are the fields of QuantisedWeight.

    Raises ValueError for a weight that the kernel does not take.
    """

    # The bits of a row do not depend on other rows or on threads.

    def __init__(
        self,
        kernels: Kernels,
        numbers: Tensor,
        scales: Tensor,
        zeros: Tensor | None = None,
        table: Tensor | None = None,
        order: Tensor | None = None,
        quantise_inputs: bool = False,
    ) -> None:
        kind = _KINDS[numbers.dtype]
        outputs, inputs = numbers.shape[0], _inputs_of(numbers)
        block = _block_of(inputs, scales.shape[1])
        if block is None or not takes(numbers, scales):
            raise ValueError(f"the kernel does not take {inputs} inputs in {scales.shape[1]} groups, or NaN")
        fits = len(scales) == outputs and (zeros is None or zeros.shape == scales.shape)
        fits &= table is None or table.shape == (16,)
        if order is not None:
            order = order.to(torch.int64).contiguous()
            fits &= order.shape == (inputs,) and bool(((order >= 0) & (order < inputs)).all())
        if not fits:
            raise ValueError(f"the scales, zeros, table or order do not fit [{outputs}, {inputs}] numbers")
        if kind == _FLOAT8:
            scales = scales * _FLOAT8_UNIT
        if quantise_inputs and numbers.dtype == torch.int8 and inputs <= MAX_BYTES_INPUTS:
            kind, numbers = _BYTES, numbers ^ -128
        self._dtype = kernels.dtype
        self._panel, pairs = _facts_of(kernels.library)
        self._pairs = pairs and self._dtype == torch.bfloat16
        self._run = kernels.library[f"packed_linear_{'bf16' if self._dtype == torch.bfloat16 else 'f32'}"]
        self._run.argtypes, self._run.restype = (c_void_p, c_int), None
        whole = scales.shape[1] == 1 and zeros is None
        scales = _narrowest(scales)
        if zeros is not None:  # the kernel subtracts 8 from the numbers too
            zeros = _narrowest(zeros - 8) if zeros.is_floating_point() else zeros.view(torch.int8) - 8
        self._weight = self._pack(kind, numbers, scales, zeros, block, whole)
        self._table = torch.arange(-8.0, 8.0) if table is None else table.float().contiguous()
        self._order = order
        self._call = _Packed(
            order=None if self._order is None else self._order.data_ptr(),
            weight=self._weight.data_ptr(),
            table=self._table.data_ptr(),
            inputs=inputs,
            outputs=outputs,
            block=block,
            kind=kind,
            scales=_TYPES.index(scales.dtype),
            zeros=_TYPES.index(None if zeros is None else zeros.dtype),
            whole=whole,
            is_bf16=self._dtype == torch.bfloat16,
        )

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:  # [T, inputs] → [T, outputs]
        call = _Packed.from_buffer_copy(self._call)
        rows, inputs, threads = x.shape[0], call.inputs, torch.get_num_threads()
        if x.dtype != self._dtype:
            raise TypeError(f"the kernel takes {self._dtype}, not {x.dtype}")
        if x.shape[1:] != (inputs,):
            raise ValueError(f"the kernel does not take x of shape {list(x.shape)} with {inputs} inputs")
        out, x = x.new_empty(rows, call.outputs), x.contiguous()
        if not rows:
            return out
        dtype = torch.int8 if call.kind == _BYTES else torch.bfloat16 if self._pairs else torch.float32
        rows_of_x = torch.empty(rows * inputs, dtype=dtype)
        sums = torch.empty(rows * (inputs // call.block + 1))  # and the scales of the rows
        call.x, call.rows_of_x, call.sums, call.out = (each.data_ptr() for each in (x, rows_of_x, sums, out))
        call.row_scales = sums[-rows:].data_ptr()
        call.rows = rows
        self._run(ctypes.addressof(call), threads)
        return out

    def _pack(
        self, kind: int, numbers: Tensor, scales: Tensor, zeros: Tensor | None, block: int, whole: bool
    ) -> Tensor:  # → uint8 [panels, bytes]
        # What lies together of an output: a step's INT4 or half a step's BYTES; pairs of the others.
        word = torch.int32 if kind in (_INT4, _BYTES) else torch.int16
        words = self._panels(numbers.view(torch.uint8).contiguous().view(word))  # [panels, panel, words]
        scales = self._panels(scales)
        inputs_of_word = word.itemsize * (2 if kind == _INT4 else 1)
        blocks = words.shape[2] * inputs_of_word // block
        heads = [] if whole else [_heads(scales, blocks)]
        if zeros is not None:
            heads.append(_heads(self._panels(zeros), blocks))
        head = sum(each.shape[2] for each in heads)
        tail = scales.flatten(1).view(torch.uint8) if whole else scales.new_empty(len(scales), 0, dtype=torch.uint8)
        size = head + block // inputs_of_word * self._panel * word.itemsize
        packed = torch.empty(len(words), blocks * size + tail.shape[1], dtype=torch.uint8)
        body = packed[:, : blocks * size].unflatten(1, (blocks, size))
        if heads:
            body[:, :, :head] = torch.cat(heads, 2)
        by_block = words.unflatten(2, (blocks, -1)).permute(0, 2, 3, 1)  # [panels, blocks, words, panel]
        body[:, :, head:].view(word).unflatten(2, (-1, self._panel)).copy_(by_block)
        packed[:, blocks * size :] = tail
        return packed

    def _panels(self, x: Tensor) -> Tensor:  # [outputs, …] → [panels, panel, …], padded
        padding = -len(x) % self._panel
        whole = F.pad(x, (0, 0, 0, padding)) if padding else x
        return whole.unflatten(0, (-1, self._panel))  # type: ignore[no-any-return]


def takes(numbers: Tensor, scales: Tensor) -> bool:
    if numbers.dtype not in _KINDS or _block_of(_inputs_of(numbers), scales.shape[1]) is None:
        return False
    return numbers.dtype != torch.float8_e4m3fn or not bool((numbers.view(torch.uint8) & 127 == 127).any())


def _inputs_of(numbers: Tensor) -> int:
    return numbers.shape[1] * (2 if numbers.dtype == torch.uint8 else 1)


def _block_of(inputs: int, groups: int) -> int | None:
    # The largest part of a group that the kernel takes.
    sizes = range(MAX_BLOCK, MIN_BLOCK - 1, -_STEP)
    return next((size for size in sizes if inputs % (groups * size) == 0), None)


def _narrowest(x: Tensor) -> Tensor:
    halves = (torch.float16, torch.bfloat16)
    return x.to(next((each for each in halves if torch.equal(x.to(each).float(), x)), torch.float32))


def _heads(x: Tensor, blocks: int) -> Tensor:  # [panels, panel, groups] → bytes [panels, blocks, …]
    repeated = x.repeat_interleave(blocks // x.shape[2], 2)
    return repeated.transpose(1, 2).contiguous().view(torch.uint8)


@functools.cache
def _facts_of(library: ctypes.CDLL) -> tuple[int, bool]:
    panel, pairs, *limits = (c_int32 * 4).in_dll(library, "kvasir_packed")
    assert limits == [MAX_BLOCK, ctypes.sizeof(_Packed)], limits
    return panel, bool(pairs)
