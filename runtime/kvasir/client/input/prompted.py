"""Prompted: a complete request for an engine, before it has an id."""

from array import array
from dataclasses import dataclass, replace

import msgspec

from kvasir.client.input.prompt_hashes import PromptHashes
from kvasir.client.text.detokenizer import Detokenizer, NoText, TextStream
from kvasir.client.text.stop_strings import StopStrings
from kvasir.request.params import SamplingParams
from kvasir.request.request_core import RequestCore, RequestKind


@dataclass(frozen=True, slots=True)
class Prompted:
    prompt_token_ids: "array[int]"
    core: RequestCore
    stops: StopStrings | None = None
    include_stop: bool = False  # keeps the final stop string or token in the text
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    # shown despite `skip_special_tokens`, for a parser of the output
    shown_special_ids: frozenset[int] = frozenset()
    hashes: PromptHashes | None = None  # None: the engine hashes the prompt
    data_parallel_rank: int | None = None
    constraint_field: str | None = None  # field of the client's request, for errors

    @property
    def params(self) -> SamplingParams:
        return self.core.params

    def with_core(self, **changes: object) -> "Prompted":
        return replace(self, core=msgspec.structs.replace(self.core, **changes))

    def child(self, index: int) -> "Prompted":
        """Return the request of one of several choices, with its own seed."""
        if index == 0:
            return self
        seed = (self.params.seed + index + 2**63) % 2**64 - 2**63
        # only the first choice scores the prompt: the scores are equal
        return self.with_core(params=msgspec.structs.replace(self.params, seed=seed, prompt_logprobs=None))

    def text(self, detokenizer: Detokenizer) -> TextStream:
        if self.core.kind is RequestKind.POOL:
            return NoText()
        return detokenizer.stream(
            self.prompt_token_ids,
            self.skip_special_tokens,
            self.spaces_between_special_tokens,
            self.shown_special_ids,
        )
