"""RequestCore: the fields of a request that every process handles, from the frontend's input to the engine.

The records of the client (Prompted, LiveRequest) and of the engine (EngineRequest) embed it. On the wire its fields
are fields of AddRequest, because a field of a message keeps its place. A new field is declared in both, and set in
`InputProcessor.prepare`.
"""

from enum import StrEnum

import msgspec

from kvasir.request.constraint import OutputConstraint
from kvasir.request.params import SamplingParams


class RequestKind(StrEnum):
    """What an engine computes for a request."""

    GENERATE = "generate"
    """Output tokens."""
    POOL = "pool"
    """One vector for the prompt. No engine supports it yet."""
    UNKNOWN = "unknown"
    """A kind that a later version has added: the engine refuses the request."""

    @classmethod
    def _missing_(cls, value: object) -> "RequestKind":
        return cls.UNKNOWN


class RequestCore(msgspec.Struct, frozen=True, gc=False):
    params: SamplingParams
    priority: int = 0
    """Engines that schedule by priority serve smaller values first."""
    cache_salt: str = ""
    """Requests with different salts share no block of the prefix cache."""
    constraint: OutputConstraint | None = None
    """The texts that the output may be. None: any."""
    kind: RequestKind = RequestKind.GENERATE
