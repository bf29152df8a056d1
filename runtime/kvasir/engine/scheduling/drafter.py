"""Drafter: guesses the next tokens of a request. A wrong guess costs time and never changes an output."""

from collections.abc import Sequence
from typing import Protocol

from kvasir.engine.engine_request import EngineRequest


class Drafter(Protocol):
    """Called in the engine's loop, for each request that decodes: keep it at O(drafts) per call.

    Decide by the requests' tokens alone, without clocks or chance: all processes of an engine must decide alike.
    """

    def wants(self, request: EngineRequest) -> bool:
        """Return whether the request should wait for its pending token, so that `propose` can follow it.

        Asked only if steps overlap: the request then leaves out the next step.
        """
        ...

    def propose(self, request: EngineRequest, most: int) -> Sequence[int]:
        """Return up to `most` (at least 1) guesses of the tokens after `request.token_ids`."""
        # No token is pending. Some or all guesses may go unused.
        ...

    def verified(self, request: EngineRequest, drafted: int, accepted: int) -> None:
        """Note that the model accepted the first `accepted` of `drafted` guesses.

        `request.token_ids` gets them, and one token more, after this call.
        """
        ...

    def ended(self, request: EngineRequest) -> None:
        """Forget the request: finished or aborted, drafted or not. Its tokens are still there."""
        ...
