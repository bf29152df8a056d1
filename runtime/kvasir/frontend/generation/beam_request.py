"""Checks the fields of a request with beam search."""

from typing import Any, Final, Protocol

from kvasir.frontend.errors import bad_field
from kvasir.request.params import Bounds

LENGTH_PENALTY: Final = Bounds(-10, 10)

# Fields that beam search does not implement, and their values that change nothing.
_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "stream": (False,),
    "stop": ([], ""),
    "min_tokens": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (None, 1),
    "logit_bias": ({},),
    "bad_words": ([],),
    "allowed_token_ids": (None,),
    "prompt_logprobs": (None,),
}


class BeamBody(Protocol):
    """The fields that decide about beam search, of the bodies of completions and chats."""

    @property
    def use_beam_search(self) -> bool: ...

    @property
    def length_penalty(self) -> float: ...


def check_beam_search(body: BeamBody) -> None:
    """Raise ApiError for fields that beam search does not take, or that need it."""
    if not body.use_beam_search:
        if body.length_penalty != 1:
            raise bad_field(
                "length_penalty", "length_penalty is for beam search: set use_beam_search, or leave it out"
            )
        return
    for name, neutral in _NEUTRAL.items():
        if getattr(body, name) not in neutral:
            raise bad_field(name, f"{name} is not supported with use_beam_search: leave out one of them")
