"""EntranceCheck: whether this engine can compute a request at all."""

from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.scheduling.endings import Endings
from kvasir.link.protocol import RequestOutput


class RequestRefused(ValueError):
    """The engine can never compute this request."""


class EntranceCheck:
    def __init__(self, endings: Endings, by_priority: bool) -> None:
        self._endings = endings
        self._by_priority = by_priority

    def check(self, request: EngineRequest) -> RequestOutput | None:
        """Return the answer if the request is complete already. Raises RequestRefused."""
        if request.num_prompt_tokens == 0:
            raise RequestRefused("the prompt has no tokens")
        priority = request.core.priority
        if priority and not self._by_priority:
            raise RequestRefused(
                f"priority is {priority}, but this engine serves requests by arrival: leave it out, or "
                "start the engine with --scheduling-policy priority"
            )
        if request.num_output_tokens:
            status = self._endings.status_of(request)
            if status.finished:
                request.status = status
                return self._endings.output(request, request.num_output_tokens, [])
        return None
