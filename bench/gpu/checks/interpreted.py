"""Makes layers on a CPU use the Triton kernels, under Triton's interpreter: for a smoke test without a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch

from kvasir.kernels import choose_operations
from kvasir.kernels.triton.fused_kernels import TritonOperations
from kvasir.layers.attention_backends import choose_backend
from kvasir.layers.attention_backends.triton_paged import TritonBackend

_TYPES: Final = MappingProxyType(
    {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8e4nv": torch.float8_e4m3fn}
)
_BITS: Final = MappingProxyType({1: torch.uint8, 2: torch.int16, 4: torch.int32})


@contextmanager
def kernels_of(device: str) -> Iterator[None]:
    # A GPU has the kernels anyway.
    if device != "cpu":
        yield
        return
    with (
        patch.object(choose_backend, "BACKENDS", (TritonBackend(device_type="cpu"),)),
        patch.object(choose_operations, "kernels_for", TritonOperations),
        rounding_to_nearest(),
    ):
        yield


@contextmanager
def rounding_to_nearest() -> Iterator[None]:
    """Let torch convert numbers of Triton's interpreter to the nearest one, as devices do.

    The interpreter truncates to bfloat16, and loses carries, small numbers and NaN in float8_e4m3fn. Out of
    range, float8_e4m3fn becomes NaN here: kernels have to clamp first, because devices differ.
    """
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def converted(numbers: npt.NDArray[Any], source: Any, target: Any, mode: Any) -> npt.NDArray[Any]:
        names = str(source), str(target)
        if names != ("fp32", "bf16") and "fp8e4nv" not in names:
            return convert(numbers, source, target, mode)  # type: ignore[no-any-return]
        before, after = (_TYPES[name] for name in names)
        given = torch.from_numpy(np.ascontiguousarray(numbers).view(f"i{before.itemsize}")).view(before)
        if after == torch.float8_e4m3fn:
            given = torch.where(given.float().abs() > 448, torch.nan, given.float())
        bits = given.to(after).view(_BITS[after.itemsize]).numpy()
        unsigned: npt.NDArray[Any] = bits.view(f"u{after.itemsize}")
        return unsigned

    with patch.object(interpreter, "_convert_float", converted):
        yield
