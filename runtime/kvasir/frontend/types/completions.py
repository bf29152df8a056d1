"""The body of POST /v1/completions."""

from typing import cast

from kvasir.frontend.errors import bad_field
from kvasir.frontend.types.fields import Schema
from kvasir.frontend.types.generation import CHILDREN, NOT_YET, GenerationRequest

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for completions."""


class CompletionRequest(GenerationRequest, kw_only=True):
    prompt: str | list[str | int | list[int]]
    """A text, a list of texts, token ids, or a list of lists of token ids."""
    add_special_tokens: bool = True
    """Add the tokenizer's special tokens (a begin-of-sequence token, say) to a prompt that is text."""

    def prompts(self) -> list[str | list[int]]:
        """One entry per choice. Raises ApiError for an empty or mixed list."""
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
    CompletionRequest,
    NOT_YET | {"best_of": (1,), "echo": (False,), "suffix": ("",), "logprobs": (), "prompt_embeds": ()},
    CHILDREN,
)
