"""Packs random integers in the layouts of checkpoints, each by the format's own formula."""

import json
from collections.abc import Mapping

import torch
from torch import Tensor

Pair = tuple[Mapping[str, Tensor], Tensor]
_DRAW = torch.Generator().manual_seed(5)


def integers(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, generator=_DRAW)


def scales(*shape: int, spread: float = 0.02) -> Tensor:
    return (torch.rand(shape, generator=_DRAW) + 0.5) * spread


def word(numbers: Tensor, bits: int) -> Tensor:
    """int32 of the numbers [..., 32 / bits], the first in the lowest bits."""
    shifted = numbers.long() << torch.arange(0, 32, bits)
    total = shifted.sum(-1)
    return torch.where(total >= 2**31, total - 2**32, total).to(torch.int32)


def fp8(shape: tuple[int, int], scale_shape: tuple[int, ...], name: str = "weight_scale") -> Pair:
    numbers = torch.randn(shape, generator=_DRAW).mul(40).to(torch.float8_e4m3fn)
    scale = scales(*scale_shape, spread=0.005)
    whole = scale
    if len(scale_shape) == 2:
        rows, columns = (size // count for size, count in zip(shape, scale_shape, strict=True))
        whole = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return {"weight": numbers, name: scale}, numbers.float() * whole


def fp8_blocks(shape: tuple[int, int], block: int) -> Pair:
    """Blocks at the ends may be smaller."""
    outputs, inputs = (-(-size // block) * block for size in shape)
    tensors, floats = fp8((outputs, inputs), (outputs // block, inputs // block), "weight_scale_inv")
    part = slice(shape[0]), slice(shape[1])
    return {**tensors, "weight": tensors["weight"][part]}, floats[part]


def int8(shape: tuple[int, int], scale_shape: tuple[int, ...]) -> Pair:
    numbers, scale = integers(-127, 128, *shape), scales(*scale_shape, spread=0.002)
    whole = scale if len(scale_shape) < 2 else scale.repeat_interleave(shape[1] // scale_shape[1], 1)
    return {"weight": numbers.to(torch.int8), "weight_scale": scale}, numbers * whole


def compressed(shape: tuple[int, int], bits: int, group: int, *, zeros: bool = False, order: bool = False) -> Pair:
    """weight_packed of compressed-tensors: number + 2 ** (bits - 1) along the inputs."""
    outputs, inputs = shape
    offset, per_word = 2 ** (bits - 1), 32 // bits
    numbers = integers(-offset, offset, outputs, inputs)
    scale = scales(outputs, inputs // group, spread=0.32 / offset)
    zero = integers(-offset, offset, outputs, inputs // group) // 4 if zeros else torch.zeros_like(scale)
    groups = torch.arange(inputs) // group
    if order:
        groups = groups[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))]
    tensors = {
        "weight_packed": word((numbers + offset).unflatten(1, (-1, per_word)), bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor(shape),
    }
    if zeros:
        tensors["weight_zero_point"] = word((zero + offset).t().unflatten(1, (-1, per_word)), bits).t()
    if order:
        tensors["weight_g_idx"] = groups.int()
    return tensors, (numbers - zero[:, groups]) * scale[:, groups]


def gptq(
    shape: tuple[int, int], bits: int, group: int, *, offset: int = 1, sym: bool = True, order: bool = False
) -> Pair:
    outputs, inputs = shape
    per_word, half = 32 // bits, 2 ** (bits - 1)
    numbers = integers(0, 2**bits, inputs, outputs)
    zero = torch.full((inputs // group, outputs), half) if sym else integers(1, 2**bits, inputs // group, outputs)
    scale = scales(inputs // group, outputs, spread=0.32 / half).half()
    groups = torch.arange(inputs) // group
    if order:
        groups = groups[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))]
    tensors = {
        "qweight": word(numbers.t().unflatten(1, (-1, per_word)), bits).t(),
        "qzeros": word((zero - offset).unflatten(1, (-1, per_word)), bits),
        "scales": scale,
        "g_idx": groups.int(),
    }
    return tensors, ((numbers - zero[groups]) * scale[groups].float()).t()


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def nvfp4(shape: tuple[int, int], *, compressed: bool = False) -> Pair:
    """ModelOpt multiplies by weight_scale_2, compressed-tensors divides by weight_global_scale."""
    outputs, inputs = shape
    numbers = integers(0, 16, outputs, inputs)
    scale = scales(outputs, inputs // 16, spread=30).to(torch.float8_e4m3fn)
    whole = scales(1, spread=0.002)
    names = ("weight_packed", "weight_global_scale") if compressed else ("weight", "weight_scale_2")
    stored = 1 / whole if compressed else whole[0]
    tensors = {names[0]: _bytes(numbers), "weight_scale": scale, names[1]: stored, "input_scale": torch.ones(1)}
    return tensors, E2M1[numbers] * (scale.float() * whole).repeat_interleave(16, 1)


def mxfp4(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return bytes [..., inputs / 2], exponents [..., inputs / 32] and floats."""
    *others, inputs = shape
    numbers = integers(0, 16, *shape)
    exponents = integers(120, 125, *others, inputs // 32)
    floats = E2M1[numbers] * torch.exp2(exponents - 127.0).repeat_interleave(32, -1)
    return _bytes(numbers), exponents.to(torch.uint8), floats


def _bytes(numbers: Tensor) -> Tensor:
    return (numbers[..., 0::2] | numbers[..., 1::2] << 4).to(torch.uint8)


NF4 = torch.tensor(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
        *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
        *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023),
        1.0,
    ]
)


def nf4(shape: tuple[int, int], *, nested: bool = False) -> Pair:
    outputs, inputs = shape
    numbers = integers(0, 16, outputs * inputs)
    absmax = scales(outputs * inputs // 64, spread=0.4)
    tensors = {"weight.quant_map": NF4.clone()}
    state: dict[str, object] = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": list(shape)}
    if nested:
        indexes, nested_map = integers(0, 256, len(absmax)).to(torch.uint8), scales(256, spread=0.8)
        nested_absmax = scales(-(-len(absmax) // 256), spread=0.5)
        absmax = nested_map[indexes.int()] * nested_absmax.repeat_interleave(256)[: len(absmax)] + 0.125
        tensors |= {"weight.nested_absmax": nested_absmax, "weight.nested_quant_map": nested_map}
        state |= {"nested_blocksize": 256, "nested_offset": 0.125}
    tensors["weight.absmax"] = indexes if nested else absmax
    tensors["weight.quant_state.bitsandbytes__nf4"] = torch.tensor(
        list(json.dumps(state).encode()), dtype=torch.uint8
    )
    tensors["weight"] = (numbers[0::2] << 4 | numbers[1::2]).to(torch.uint8)[:, None]
    return tensors, (NF4[numbers] * absmax.repeat_interleave(64)).view(shape)


def llm_int8(shape: tuple[int, int]) -> Pair:
    numbers, largest = integers(-127, 128, *shape), scales(shape[0], spread=0.3)
    tensors = {
        "weight": numbers.to(torch.int8),
        "SCB": largest,
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return tensors, numbers * largest[:, None] / 127


def awq(shape: tuple[int, int], group: int) -> Pair:
    outputs, inputs = shape
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    numbers, zero = integers(0, 16, inputs, outputs), integers(0, 16, inputs // group, outputs)
    scale = scales(inputs // group, outputs, spread=0.04).half()
    packed, zeros = (word(values.unflatten(1, (-1, 8))[:, :, order], 4) for values in (numbers, zero))
    groups = torch.arange(inputs) // group
    tensors = {"qweight": packed, "qzeros": zeros, "scales": scale}
    return tensors, ((numbers - zero[groups]) * scale[groups].float()).t()
