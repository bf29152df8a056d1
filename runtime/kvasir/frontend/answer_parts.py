"""Parts that the answers of several APIs share, as structs: schema of the OpenAPI document and encoder at once."""

from msgspec import UNSET, Struct, UnsetType


class PromptTokensDetails(Struct):
    cached_tokens: int


class CompletionTokensDetails(Struct):
    reasoning_tokens: int


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    """Only in chats whose output is parsed."""


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(Struct):
    """An entry per token; null where a token has no log probability, as the first of an echoed prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    def __add__(self, other: "CompletionLogprobs") -> "CompletionLogprobs":
        return CompletionLogprobs(
            self.tokens + other.tokens,
            self.token_logprobs + other.token_logprobs,
            self.top_logprobs + other.top_logprobs,
            self.text_offset + other.text_offset,
        )


class PromptLogprob(Struct):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""Scores per token of the prompt, by token id; null for the first."""
