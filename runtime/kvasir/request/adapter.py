"""Adapter: a LoRA adapter that a request is computed with."""

import msgspec


class Adapter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    name: str  # as clients know it; for logs and errors
    source: str  # where engines find it: hf://org/name[@revision] or file:///path
    digest: str  # of its files: other weights under the same name are another adapter
