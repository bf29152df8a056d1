"""The digest of a request: the same for each attempt and for a retry through another frontend.

Frontends count by it how often a request was in a step that failed. The engine computes it for the requests of a
step, and a frontend for those that it has. Neither needs torch.
"""

from hashlib import blake2b
from typing import Final

import msgspec

from kvasir.request.params import SamplingParams
from kvasir.request.request_core import RequestCore, RequestKind

DIGEST_BYTES: Final = 16

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SamplingParams).decode


def request_digest(prompt_tokens: bytes | memoryview, core: RequestCore) -> bytes:
    """Return the digest of a prompt, as on the link, its parameters, its kind and the constraint of its output.

    The seed is left out: the frontend draws another one for each request without a seed. The parameters are read
    back as an engine reads them, because 0 and 0.0 differ in their bytes.
    """
    digest = blake2b(prompt_tokens, digest_size=DIGEST_BYTES, person=b"kvasir request")
    received = core.params if core.params.seed == 0 else msgspec.structs.replace(core.params, seed=0)
    digest.update(_encode(_decode(_encode(received))))
    if core.constraint is not None:
        digest.update(_encode(core.constraint))
    if core.kind is not RequestKind.GENERATE:
        digest.update(core.kind.encode())
    return digest.digest()
