"""Makes layers on a CPU use the Triton kernels, under Triton's interpreter: for a smoke test without a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from kvasir.kernels import choose_operations
from kvasir.kernels.triton.fused_kernels import TritonOperations
from kvasir.layers.attention_backends import choose_backend
from kvasir.layers.attention_backends.triton_paged import TritonBackend


@contextmanager
def kernels_of(device: str) -> Iterator[None]:
    """Nothing changes on a GPU, which has the kernels anyway."""
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
    """The interpreter cuts numbers off when it converts them to bfloat16; devices round them."""
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def rounded(values: Any, source: Any, target: Any, mode: Any) -> Any:
        if str(target) != "bf16" or str(source) != "fp32":
            return convert(values, source, target, mode)
        bits = torch.from_numpy(values.astype("float32")).bfloat16().view(torch.int16)
        return bits.numpy().view("uint16")

    with patch.object(interpreter, "_convert_float", rounded):
        yield
