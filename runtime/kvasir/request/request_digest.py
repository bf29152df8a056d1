"""The digest of a request, the same at every frontend and for each attempt, to count its failed steps."""

from hashlib import blake2b
from typing import Final

import msgspec

from kvasir.request.params import SamplingParams
from kvasir.request.request_core import RequestCore, RequestKind

DIGEST_BYTES: Final = 16

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SamplingParams).decode


def request_digest(prompt_tokens: bytes | memoryview, core: RequestCore) -> bytes:
    """Return the digest of a prompt, as on the link, and of all other fields but the seed."""
    digest = blake2b(prompt_tokens, digest_size=DIGEST_BYTES, person=b"kvasir request")
    # The frontend draws another seed for each request without one.
    received = core.params if core.params.seed == 0 else msgspec.structs.replace(core.params, seed=0)
    # Read back as an engine reads them: 0 and 0.0 differ in their bytes.
    digest.update(_encode(_decode(_encode(received))))
    if core.constraint is not None:
        digest.update(_encode(core.constraint))
    if core.kind is not RequestKind.GENERATE:
        digest.update(core.kind.encode())
    return digest.digest()
