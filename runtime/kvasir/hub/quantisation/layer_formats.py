"""Formats of a layer's tensors."""

from dataclasses import dataclass
from typing import Literal

# The weights that share a scale. A group spans inputs of one output, a block outputs and inputs.
Granularity = Literal["tensor", "channel", "group", "block"]


@dataclass(frozen=True)
class Numbers:
    dtype: Literal["int8", "float8_e4m3fn"]
    granularity: Granularity
    block: tuple[int, int] = (1, 1)  # outputs, inputs
    scale: str = "weight_scale"
    unit: float = 1.0  # weight = number * scale * unit
    quantise_inputs: bool = False


@dataclass(frozen=True)
class PackedNumbers:
    # int32 along the inputs, of compressed-tensors
    bits: int
    group: int | None  # None: all inputs
    symmetric: bool
    ordered: bool = False  # with weight_g_idx


@dataclass(frozen=True)
class GPTQ:
    bits: int
    group: int | None
    zero_offset: int  # v1 stores zeros minus 1
    desc_act: bool


@dataclass(frozen=True)
class AWQ:
    group: int | None


@dataclass(frozen=True)
class Float4:
    # two e2m1 numbers in a byte
    weight: str
    group: int
    scale_dtype: Literal["float8_e4m3fn", "uint8"]  # uint8: e8m0
    global_scale: str | None = None
    divides: bool = False  # by the global scale


@dataclass(frozen=True)
class MXFP4Experts:
    """Stacked experts of gpt-oss."""


@dataclass(frozen=True)
class BitsAndBytes4:
    block: int  # numbers of the flat tensor that share a scale


@dataclass(frozen=True)
class OnLoad:
    numbers: Literal["int8", "int4", "fp8"]


@dataclass(frozen=True)
class Nibbles:
    """Two numbers of 4 bits in each byte along the inputs, and a scale for each group of inputs (GGUF)."""

    group: int
    zeros: bool = False  # weight_zero is float32
    table: bool = False  # numbers are indexes of IQ4_NL's table


LayerFormat = Numbers | PackedNumbers | GPTQ | AWQ | Float4 | MXFP4Experts | BitsAndBytes4 | OnLoad | Nibbles
