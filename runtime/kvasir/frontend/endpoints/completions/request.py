"""The body of POST /v1/completions."""

from typing import Annotated, cast

from msgspec import Meta

from kvasir.frontend.endpoints.fields import Schema
from kvasir.frontend.errors import bad_field
from kvasir.frontend.generation.generation_request import CHILDREN, NOT_YET, GenerationRequest
from kvasir.params import TOP_LOGPROBS

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for completions."""
MOST_CANDIDATES = 20
"""OpenAI's limit of best_of."""


class CompletionRequest(GenerationRequest, kw_only=True):
    prompt: str | list[str | int | list[int]]
    """A text, a list of texts, token ids, or a list of lists of token ids."""
    add_special_tokens: bool = True
    """Add the tokenizer's special tokens (a begin-of-sequence token, say) to a prompt that is text."""
    best_of: Annotated[int, Meta(ge=1, le=MOST_CANDIDATES)] | None = None
    """Generate so many and answer with the `n` whose log probability per token is highest."""
    logprobs: Annotated[int, TOP_LOGPROBS.meta] | None = None
    echo: bool = False
    """Put the prompt before the output, its log probabilities too; then max_tokens may be 0."""

    @property
    def candidates(self) -> int:
        """Choices that are generated for each prompt."""
        return self.n if self.best_of is None else self.best_of

    @property
    def prompt_only(self) -> bool:
        return self.echo and self.max_tokens == 0

    @property
    def needed_logprobs(self) -> int | None:
        """The log probabilities that the engine must report for the output."""
        return 0 if self.logprobs is None and self.candidates > self.n else self.logprobs

    def check(self) -> None:
        super().check()
        if self.best_of is not None:
            if self.best_of < self.n:
                raise bad_field("best_of", f"best_of is {self.best_of}, less than n: give n = {self.n} or more")
            if self.best_of > self.n and self.stream:
                raise bad_field("best_of", "best_of cannot be streamed: which one is best is known at the end")

    def prompts(self) -> list[str | list[int]]:
        """At least one. Raises ApiError for an empty or mixed list."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise bad_field("prompt", "prompt: the list is empty")
        kinds = {type(item) for item in self.prompt}
        if len(kinds) > 1:
            raise bad_field("prompt", "prompt: a list holds texts, token ids or lists of token ids, not a mixture")
        if kinds == {int}:
            return [cast(list[int], self.prompt)]
        return cast(list[str | list[int]], self.prompt)


COMPLETION: Schema[CompletionRequest] = Schema(
    CompletionRequest, NOT_YET | {"suffix": ("",), "prompt_embeds": ()}, CHILDREN
)
