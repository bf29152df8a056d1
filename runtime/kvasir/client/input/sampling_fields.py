"""The sampling fields of a request as OpenAI's and vLLM's APIs name them, with the ranges that hold for any model.

Both request bodies have them (frontend/types/generation.py); client/sampling.py makes of them what an engine gets.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

MOST_LOGPROBS = 20
"""Most likely tokens that are told of each place: vLLM's default limit, and OpenAI's."""

Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
TopLogprobs = Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)]


class SamplingFields(msgspec.Struct, kw_only=True):
    """None: the model's generation_config.json decides, or nothing is asked."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    """0 or -1 keeps all tokens."""
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    """1 is off. Beyond the range logits overflow."""
    seed: int | None = None
    logit_bias: dict[str, Bias] = msgspec.field(default_factory=dict)
    """Token id, as a decimal number in a string → what is added to its logit."""
    bad_words: list[str] = msgspec.field(default_factory=list)
    """Texts that never appear in the output, at the beginning of a word or in it."""
    allowed_token_ids: Annotated[list[int], Meta(min_length=1)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    """No end-of-sequence token, stop token or stop string before this many tokens."""
    stop: str | list[str] = msgspec.field(default_factory=list)
    include_stop_str_in_output: bool = False
    """Keep the stop string, or the stop token's text, in the output."""
    stop_token_ids: list[int] = msgspec.field(default_factory=list)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    prompt_logprobs: TopLogprobs | None = None
