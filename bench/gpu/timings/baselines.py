"""torch's own attention over contiguous K and V, by each of its backends that takes the shapes."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from bench.gpu.timing import graph_seconds
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}


def sdpa_seconds(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, on_gpu: bool) -> dict[str, float | str]:
    """Return the time by backend, or why it does not compute. q [B, heads, L, D]; k, v [B, kv_heads, S, D]"""
    found: dict[str, float | str] = {}
    for name, backend in BACKENDS.items() if on_gpu else [("math", SDPBackend.MATH)]:

        def call(backend: SDPBackend = backend) -> Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

        found[name] = measured(call, on_gpu=on_gpu)
    return found


def measured(call: Callable[[], Tensor], *, on_gpu: bool) -> float | str:
    """Return seconds, or the error."""
    try:
        call()
        return graph_seconds([call], on_gpu=on_gpu, least=4)
    except RuntimeError as error:
        if on_gpu:
            torch.cuda.synchronize()  # raises again if the device is broken
        return str(error).strip().splitlines()[0][:200]
