"""Chooses the attention backend of a KV group."""

from typing import Final

from kvasir.layers.attention import AttentionBackend, HeadShape
from kvasir.layers.attention_backends.gather_planner import GatherBackend
from kvasir.layers.attention_backends.per_request import PerRequestBackend
from kvasir.layers.attention_backends.tile_backend import TileBackend
from kvasir.layers.attention_backends.triton_paged import TritonBackend
from kvasir.layers.kv import KVSpec, PerRequest
from kvasir.layers.parameter import Placement

# The fastest first. The last one supports everything except an fp8 cache.
BACKENDS: Final[tuple[AttentionBackend, ...]] = (TileBackend(), TritonBackend(), GatherBackend())
_PER_REQUEST: Final[tuple[AttentionBackend, ...]] = (PerRequestBackend(),)


class NoBackendError(Exception):
    """No backend supports the fp8 cache."""


def choose_backend(spec: KVSpec, heads: HeadShape, placement: Placement) -> AttentionBackend:
    """Return the first backend that supports the group. Raises NoBackendError for an fp8 cache."""
    for backend in _PER_REQUEST if isinstance(spec, PerRequest) else BACKENDS:
        if backend.supports(spec, heads, placement):
            return backend
    raise NoBackendError(
        f"no attention kernel for {placement.device.type} reads {spec.block.dtype} with {heads.heads} query heads, "
        f"{heads.kv_heads} KV heads of {heads.head_dim} numbers and {placement.dtype}"
    )
