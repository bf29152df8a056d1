"""The digest by which frontends count the failed steps of a request."""

from hashlib import blake2b
from typing import Final

import msgspec

from kvasir.request.params import SamplingParams
from kvasir.request.request_core import RequestCore, RequestKind

DIGEST_BYTES: Final = 16

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SamplingParams).decode


def request_digest(prompt_tokens: bytes | memoryview, core: RequestCore) -> bytes:
    """Return the digest of all fields but the seed."""
    digest = blake2b(prompt_tokens, digest_size=DIGEST_BYTES, person=b"kvasir request")
    # Frontends draw a seed for each request without one.
    received = core.params if core.params.seed == 0 else msgspec.structs.replace(core.params, seed=0)
    # Decoded as in an engine: 0 and 0.0 differ in bytes.
    digest.update(_encode(_decode(_encode(received))))
    if core.constraint is not None:
        digest.update(_encode(core.constraint))
    if core.kind is not RequestKind.GENERATE:
        digest.update(core.kind.encode())
    if core.pooling is not None:
        digest.update(_encode(core.pooling))
    if core.adapter is not None:
        digest.update(core.adapter.digest.encode())
    return digest.digest()
