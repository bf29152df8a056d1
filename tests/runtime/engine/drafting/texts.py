"""Requests and texts for tests of drafters."""

from collections.abc import Sequence

from kvasir.engine.engine_request import EngineRequest
from kvasir.request.adapter import Adapter
from runtime.engine.core_harness import add_request


def request_with(
    tokens: Sequence[int], output: Sequence[int] = (), cache_salt: str = "", adapter: Adapter | None = None
) -> EngineRequest:
    message = add_request("r", tokens, 100, output=output, cache_salt=cache_salt, adapter=adapter)
    return EngineRequest("frontend", message)


def naive_place(text: Sequence[int], length: int) -> int | None:
    """Return the newest place, before the last one, at which the last n-gram of the text ends."""
    ngram = list(text[-length:])
    ends = range(len(text) - 2, length - 2, -1)
    return next((end for end in ends if list(text[end + 1 - length : end + 1]) == ngram), None)
