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
    """The request as the engine gets it, and how its output becomes text."""

    prompt_token_ids: "array[int]"
    core: RequestCore
    stops: StopStrings | None = None
    include_stop: bool = False
    """Whether the text includes the stop string or stop token that ends it."""
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    shown_special_ids: frozenset[int] = frozenset()
    """Special tokens that are in the text even if `skip_special_tokens`: a parser of the output reads them."""
    hashes: PromptHashes | None = None
    """Hashes of the prompt's blocks, shared by all choices. None: the engine computes its own."""
    data_parallel_rank: int | None = None
    """The request is sent to engines of this rank only. None: to any engine."""
    constraint_field: str | None = None
    """The field of the client's request with the constraint, for errors."""

    @property
    def params(self) -> SamplingParams:
        return self.core.params

    def with_core(self, **changes: object) -> "Prompted":
        """Return the request with these fields of its core changed."""
        return replace(self, core=msgspec.structs.replace(self.core, **changes))

    def child(self, index: int) -> "Prompted":
        """Return the request for one of several choices.

        Each has a seed of its own; the first has the seed of the request. Only the first has the prompt scored
        (`prompt_logprobs`), because the others would get the same scores.
        """
        if index == 0:
            return self
        seed = (self.params.seed + index + 2**63) % 2**64 - 2**63
        return self.with_core(params=msgspec.structs.replace(self.params, seed=seed, prompt_logprobs=None))

    def text(self, detokenizer: Detokenizer) -> TextStream:
        """Return a new stream that turns the output tokens into text."""
        return detokenizer.stream(
            self.prompt_token_ids,
            self.skip_special_tokens,
            self.spaces_between_special_tokens,
            self.shown_special_ids,
        )
