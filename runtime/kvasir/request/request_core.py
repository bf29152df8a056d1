"""RequestCore: the fields of a request that every process handles.

A new field is also a field of AddRequest, and set in `InputProcessor.prepare`.
"""

from enum import StrEnum

import msgspec

from kvasir.request.adapter import Adapter
from kvasir.request.constraint import OutputConstraint
from kvasir.request.params import SamplingParams
from kvasir.request.pool_params import PoolParams


class RequestKind(StrEnum):
    GENERATE = "generate"  # output tokens
    POOL = "pool"  # one vector for the prompt
    UNKNOWN = "unknown"  # a kind of a later version: the request goes to another engine

    @classmethod
    def _missing_(cls, value: object) -> "RequestKind":
        return cls.UNKNOWN


class RequestCore(msgspec.Struct, frozen=True, gc=False):
    params: SamplingParams
    priority: int = 0  # smaller first, with --scheduling-policy priority
    cache_salt: str = ""  # different salts share no cached block
    constraint: OutputConstraint | None = None  # None: any text
    kind: RequestKind = RequestKind.GENERATE
    pooling: PoolParams | None = None  # of kind POOL
    adapter: Adapter | None = None  # None: the model without an adapter

    @property
    def adapter_digest(self) -> str:
        """Return the digest of its adapter; "" without one."""
        return "" if self.adapter is None else self.adapter.digest
