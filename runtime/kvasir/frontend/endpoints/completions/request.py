"""The body of POST /v1/completions."""

from typing import Annotated, Any, ClassVar, cast

from pydantic import Discriminator, Field, Tag

from kvasir.frontend.errors import bad_field
from kvasir.frontend.generation.generation_request import GenerationRequest
from kvasir.request.params import TOP_LOGPROBS

# OpenAI's default for completions.
DEFAULT_MAX_TOKENS = 16
# OpenAI's limit of best_of.
MAX_BEST_OF = 20


def _kind_of_prompt(prompt: Any) -> str:
    if not isinstance(prompt, list):
        return "text" if isinstance(prompt, str) else "neither"
    if not prompt:
        return "empty"
    return "texts" if isinstance(prompt[0], str) else "lists" if isinstance(prompt[0], list) else "tokens"


_TokenIds = Annotated[list[int], Field(fail_fast=True)]
Prompt = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[Any], Field(max_length=0), Tag("empty")]
    | Annotated[list[str], Field(fail_fast=True), Tag("texts")]
    | Annotated[_TokenIds, Tag("tokens")]
    | Annotated[list[_TokenIds], Field(fail_fast=True), Tag("lists")],
    Discriminator(_kind_of_prompt, custom_error_type="string_or_list_type", custom_error_message="neither"),
]


class CompletionRequest(GenerationRequest):
    not_yet: ClassVar = {**GenerationRequest.not_yet, "suffix": ("",), "prompt_embeds": ()}

    prompt: Prompt
    """A text, a list of texts, token ids, or a list of lists of token ids."""
    add_special_tokens: bool = True
    """Add the tokenizer's special tokens (a begin-of-sequence token, say) to a prompt that is text."""
    best_of: Annotated[int, Field(ge=1, le=MAX_BEST_OF)] | None = None
    """Generate so many and answer with the `n` whose log probability per token is highest."""
    logprobs: Annotated[int, Field(ge=TOP_LOGPROBS.least, le=TOP_LOGPROBS.most)] | None = None
    echo: bool = False
    """Put the prompt before the output, its log probabilities too; then max_tokens may be 0."""

    @property
    def candidates(self) -> int:
        return self.n if self.best_of is None else self.best_of

    @property
    def prompt_only(self) -> bool:
        return self.echo and self.max_tokens == 0

    @property
    def needed_logprobs(self) -> int | None:
        """Return what the engine must report for the output."""
        return 0 if self.logprobs is None and self.candidates > self.n else self.logprobs

    def check(self) -> None:
        super().check()
        if self.use_beam_search:
            self._check_beam_search()
        if self.best_of is not None:
            if self.best_of < self.n:
                raise bad_field("best_of", f"best_of is {self.best_of}, less than n: give n = {self.n} or more")
            if self.best_of > self.n and self.stream:
                raise bad_field("best_of", "best_of cannot be streamed: which one is best is known at the end")

    def _check_beam_search(self) -> None:
        if self.best_of is not None:
            raise bad_field("best_of", "best_of is not for beam search: n is the number of beams")
        if self.echo and (self.logprobs is not None or self.max_tokens == 0):
            raise bad_field(
                "echo", "echo: beam search has no log probabilities of the prompt, leave out one of them"
            )

    def prompts(self) -> list[str | list[int]]:
        """Raises ApiError for an empty list."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise bad_field("prompt", "prompt: the list is empty")
        if isinstance(self.prompt[0], int):
            return [cast(list[int], self.prompt)]
        return cast(list[str | list[int]], self.prompt)
