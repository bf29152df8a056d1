"""torch's own attention over contiguous K and V, by each of its backends that takes the shapes."""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from bench.gpu.timing import Call, graph_seconds
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}


# q [B, heads, L, D]; k, v [B, kv_heads, S, D]
Inputs = tuple[Tensor, Tensor, Tensor]


def sdpa_seconds(inputs: Sequence[Inputs], *, causal: bool, on_gpu: bool) -> dict[str, float | str]:
    """Return the time by backend, or why it does not compute. The inputs are used in turn."""
    found: dict[str, float | str] = {}
    for name, backend in BACKENDS.items() if on_gpu else [("math", SDPBackend.MATH)]:
        found[name] = measured([partial(_sdpa, backend, causal, *each) for each in inputs], on_gpu=on_gpu)
    return found


def _sdpa(backend: SDPBackend, causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def measured(calls: Sequence[Call], *, on_gpu: bool) -> float | str:
    """Return the seconds of a call, or the error."""
    try:
        return graph_seconds(calls, on_gpu=on_gpu, least=4)
    except Exception as error:
        if on_gpu:
            torch.cuda.synchronize()  # raises again if the device is broken
        return str(error).strip().splitlines()[0][:200]
