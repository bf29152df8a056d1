"""`kvasir.SamplingParams`: how the tokens of an offline request are chosen, by the names of vLLM.

`kvasir.params.SamplingParams` is another class: what an engine gets, with every field filled in.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from kvasir.offline.structured_outputs import StructuredOutputsParams
from kvasir.params import MAX_TOKENS, TOP_LOGPROBS, SamplingFields

MOST_CHOICES: Final = 128


class _Fields(SamplingFields, kw_only=True):
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] = 1
    """Outputs for each prompt; the one at index i draws from seed + i."""
    max_tokens: Annotated[int, MAX_TOKENS.meta] | None = 16
    """None: as many as the context has room for."""
    logprobs: Annotated[int, TOP_LOGPROBS.meta] | None = None
    """Report the log probability of each output token and of this many most likely ones."""
    structured_outputs: StructuredOutputsParams | None = None
    """What the output must look like. None: any text."""


class SamplingParams(_Fields, kw_only=True):
    """Raises TypeError for an unknown parameter, and ValueError for a value of a wrong type or out of range.

    None: the model's generation_config.json decides, as for requests to a service.
    """

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids", "bad_words"):
            if getattr(self, name) is None:
                setattr(self, name, [])
        self.logit_bias = _by_decimal_number(self.logit_bias or {})
        try:
            msgspec.convert(msgspec.to_builtins(self), _Fields)
        except msgspec.ValidationError as error:
            problem, _, path = str(error).partition(" - at ")
            raise ValueError(f"{path.strip('`').removeprefix('$.')}: {problem}") from None


def _by_decimal_number(bias: dict[Any, float]) -> dict[str, float]:
    return {str(token_id): added for token_id, added in bias.items()}
