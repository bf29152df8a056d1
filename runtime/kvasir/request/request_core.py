"""RequestCore: the fields of a request that every process handles.

The client's Prompted and LiveRequest and the engine's EngineRequest embed it; on the wire its fields are fields of
AddRequest, where each keeps its place. A new field is declared in both, and set in `InputProcessor.prepare`.
"""

from enum import StrEnum

import msgspec

from kvasir.request.constraint import OutputConstraint
from kvasir.request.params import SamplingParams


class RequestKind(StrEnum):
    GENERATE = "generate"  # output tokens
    POOL = "pool"  # one vector for the prompt; no engine supports it yet
    UNKNOWN = "unknown"  # a kind of a later version: the engine refuses the request

    @classmethod
    def _missing_(cls, value: object) -> "RequestKind":
        return cls.UNKNOWN


class RequestCore(msgspec.Struct, frozen=True, gc=False):
    params: SamplingParams
    priority: int = 0  # smaller is served first, if the engine schedules by priority
    cache_salt: str = ""  # requests with different salts share no block of the prefix cache
    constraint: OutputConstraint | None = None  # of the output; None: any text
    kind: RequestKind = RequestKind.GENERATE
