"""The scales of bitsandbytes weights that are quantised themselves (bnb_4bit_use_double_quant).

absmax = nested_quant_map[index] * nested_absmax[block] + nested_offset, with the offset in a JSON of bytes.
"""

import json
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from kvasir.hub.weight_scheme import WeightScheme
from kvasir.layers.layout import Part
from kvasir.layers.parameter import Source

_SUFFIX: Final = ".weight.absmax"


def nested_scales(name: str, tensor: Source, scheme: WeightScheme, read: Callable[[str], Tensor]) -> Source | None:
    """Return the floats of a tensor if it holds scales that are quantised. `read` returns tensors by name."""
    if not name.endswith(_SUFFIX) or tensor[(slice(1),)].dtype != torch.uint8:
        return None
    kind = scheme.config.get("bnb_4bit_quant_type") or "fp4"
    return _NestedScales(name, tensor.shape, f"quant_state.bitsandbytes__{kind}", read)


class _NestedScales:
    def __init__(self, name: str, shape: Sequence[int], state: str, read: Callable[[str], Tensor]) -> None:
        self._state = state
        self._prefix = name.removesuffix("absmax")
        self.shape = tuple(shape)
        self._read = read

    def __getitem__(self, part: Part, /) -> Tensor:
        state = json.loads(bytes(self._of(self._state).tolist()))
        scales, values = self._of("nested_absmax"), self._of("nested_quant_map")[self._of("absmax").int()]
        blocks = torch.arange(len(values)) // int(state["nested_blocksize"])
        return (values * scales[blocks] + float(state["nested_offset"]))[part]

    def _of(self, last: str) -> Tensor:
        return self._read(self._prefix + last)
