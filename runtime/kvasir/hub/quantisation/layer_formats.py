"""How the tensors of a layer hold its quantised weight."""

from dataclasses import dataclass
from typing import Literal

# What shares a scale: all weights of a tensor, those of an output, or of a group of inputs of one output. A block
# spans outputs and inputs.
Granularity = Literal["tensor", "channel", "group", "block"]


@dataclass(frozen=True)
class Numbers:
    """A number of 8 bits in each entry of `weight`: weight * scale."""

    dtype: Literal["int8", "float8_e4m3fn"]
    granularity: Granularity
    block: tuple[int, int] = (1, 1)  # outputs and inputs that share a scale
    scale: str = "weight_scale"
    unit: float = 1.0  # the weight is number * scale * unit
    quantise_inputs: bool = False


@dataclass(frozen=True)
class PackedNumbers:
    """The int32 of compressed-tensors, with several numbers along the inputs of an output."""

    bits: int
    group: int | None  # None: one scale for each output
    symmetric: bool
    ordered: bool = False  # weight_g_idx has the group of each input


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
    """Two e2m1 numbers in each byte along the inputs, and a scale for each group of inputs."""

    weight: str
    group: int
    scale_dtype: Literal["float8_e4m3fn", "uint8"]  # uint8: the exponent of a power of 2 (e8m0)
    global_scale: str | None = None
    divides: bool = False  # the scale of a group is divided by the global one


@dataclass(frozen=True)
class MXFP4Experts:
    """The experts of gpt-oss, stacked in tensors of blocks and exponents."""


@dataclass(frozen=True)
class BitsAndBytes4:
    """Numbers of 4 bits, each an index of quant_map, for a flat tensor with a scale (absmax) for each block."""

    block: int


@dataclass(frozen=True)
class OnLoad:
    """Floats of the checkpoint that are quantised when they are loaded."""

    numbers: Literal["int8", "int4", "fp8"]


@dataclass(frozen=True)
class Nibbles:
    """Two numbers of 4 bits in each byte along the inputs, and a scale for each group of inputs (GGUF)."""

    group: int
    zeros: bool = False  # weight_zero is float32
    table: bool = False  # numbers are indexes of IQ4_NL's table


LayerFormat = Numbers | PackedNumbers | GPTQ | AWQ | Float4 | MXFP4Experts | BitsAndBytes4 | OnLoad | Nibbles
