"""Chooses the attention backend of a KV group. Adding a backend is one module and one entry here."""

from typing import Final

from kvasir.layers.attention import AttentionBackend, HeadShape
from kvasir.layers.attention_backends.gather_planner import GatherBackend
from kvasir.layers.attention_backends.tiles import TileBackend
from kvasir.layers.attention_backends.triton_paged import TritonBackend
from kvasir.layers.kv import KVSpec
from kvasir.layers.parameter import Placement

BACKENDS: Final[tuple[AttentionBackend, ...]] = (TileBackend(), TritonBackend(), GatherBackend())
"""The fastest first; the last one supports everything."""


def choose_backend(spec: KVSpec, heads: HeadShape, placement: Placement) -> AttentionBackend:
    """Return the first backend that supports a group with these heads on this device."""
    return next(backend for backend in BACKENDS if backend.supports(spec, heads, placement))
