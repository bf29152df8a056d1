"""What a request asks of the sampler; shared by frontend and engine, free of torch.

The frontend fills every field (the seed too) before a request goes onto the link, so that any engine that
continues the request draws the same tokens.
"""

from collections.abc import Iterator
from itertools import chain

import msgspec

GREEDY_TEMPERATURE = 1e-5
"""Below this temperature a request is decoded greedily (as in vLLM: dividing by less overflows)."""


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """How the tokens of one request are chosen and when it ends.

    Fields are only appended, with defaults: they travel on the link.
    """

    max_tokens: int
    """Tokens to generate, the ones already emitted by an earlier attempt included; at least 1."""
    seed: int
    """Random numbers are drawn from (seed, position of the token); any 64-bit signed value."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this; 1 keeps all."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    stop_token_ids: tuple[int, ...] = ()
    """End at any of these tokens, besides the model's end-of-sequence tokens."""
    ignore_eos: bool = False
    """Go on after an end-of-sequence token (benchmarks)."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the most likely one; 0 keeps all."""
    presence_penalty: float = 0.0
    """Taken from the logit of every token that the output has already."""
    frequency_penalty: float = 0.0
    """Taken from a token's logit once per time that it is in the output."""
    repetition_penalty: float = 1.0
    """Divides positive logits, multiplies negative ones, of tokens in prompt or output; 1 is off."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit)."""
    allowed_token_ids: tuple[int, ...] = ()
    """Draw from these only; empty: from all."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that are never completed in the output."""
    min_tokens: int = 0
    """No end-of-sequence and no stop token before this many output tokens."""
    logprobs: int | None = None
    """Report each output token's log probability and those of this many most likely tokens; None: none."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens, from its second one on."""

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    def named_token_ids(self) -> Iterator[int]:
        """All token ids that it holds."""
        biased = (token_id for token_id, _ in self.logit_bias)
        return chain(self.stop_token_ids, self.allowed_token_ids, biased, *self.bad_words)
