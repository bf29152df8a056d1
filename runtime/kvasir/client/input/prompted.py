"""Prompted: a request that an engine can take as it is, before it has an id."""

from array import array
from dataclasses import dataclass, replace

import msgspec

from kvasir.client.input.prompt_hashes import PromptHashes
from kvasir.client.text.detokenizer import Detokenizer, TextStream
from kvasir.client.text.stop_strings import StopStrings
from kvasir.request.params import SamplingParams
from kvasir.request.request_core import RequestCore


@dataclass(frozen=True, slots=True)
class Prompted:
    prompt_token_ids: "array[int]"
    core: RequestCore
    stops: StopStrings | None = None
    include_stop: bool = False  # the stop string or token that ends the text stays in it
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    # in the text even if `skip_special_tokens`: a parser of the output reads them
    shown_special_ids: frozenset[int] = frozenset()
    hashes: PromptHashes | None = None  # shared by all choices; None: the engine hashes the prompt
    data_parallel_rank: int | None = None  # None: any engine
    constraint_field: str | None = None  # of the client's request, for errors

    @property
    def params(self) -> SamplingParams:
        return self.core.params

    def with_core(self, **changes: object) -> "Prompted":
        return replace(self, core=msgspec.structs.replace(self.core, **changes))

    def child(self, index: int) -> "Prompted":
        """Return the request for one of several choices, each with a seed of its own."""
        if index == 0:
            return self
        seed = (self.params.seed + index + 2**63) % 2**64 - 2**63
        # Only the first choice has the prompt scored: the others would get the same scores.
        return self.with_core(params=msgspec.structs.replace(self.params, seed=seed, prompt_logprobs=None))

    def text(self, detokenizer: Detokenizer) -> TextStream:
        return detokenizer.stream(
            self.prompt_token_ids,
            self.skip_special_tokens,
            self.spaces_between_special_tokens,
            self.shown_special_ids,
        )
