"""One request inside an engine: its tokens, its KV blocks and how far it is computed.

Made by EngineCore from an AddRequest; changed by the scheduler only.
"""

from enum import IntEnum

from kvasir.params import SamplingParams
from kvasir.protocol import AddRequest, FinishReason
from kvasir.worker.step import NewRow


class RequestStatus(IntEnum):
    """Ordered, so that "finished" is a comparison and not a set of cases."""

    WAITING = 0
    PREEMPTED = 1
    """Waiting again: its row and blocks were taken away, its tokens are kept."""
    RUNNING = 2
    """Owns a row in the worker, and KV blocks."""
    STOPPED = 3
    """The first finished status: everything from here on is over."""
    LENGTH = 4
    ABORTED = 5
    """No output tells of it."""

    @property
    def finished(self) -> bool:
        return self >= RequestStatus.STOPPED


FINISH_REASONS = {
    RequestStatus.STOPPED: FinishReason.STOP,
    RequestStatus.LENGTH: FinishReason.LENGTH,
}


class EngineRequest:
    """Prompt and output tokens lie in one list: a resumed request is computed like a longer prompt.

    `num_computed_tokens` chases `num_tokens`; where it has caught up, the step samples one token more.
    """

    __slots__ = (
        "attempt",
        "block_ids",
        "frontend",
        "num_computed_tokens",
        "num_prompt_tokens",
        "params",
        "prompt_counted",
        "request_id",
        "status",
        "token_ids",
    )

    def __init__(self, frontend: str, message: AddRequest) -> None:
        self.frontend = frontend
        self.request_id = message.request_id
        self.attempt = message.attempt
        self.params: SamplingParams = message.params
        self.num_prompt_tokens = len(message.prompt_token_ids)
        self.token_ids: list[int] = message.prompt_token_ids + message.output_token_ids
        self.num_computed_tokens = 0
        self.block_ids: list[int] = []
        self.status = RequestStatus.WAITING
        self.prompt_counted = False
        """Its prompt is in the metrics: once per request, however often it is preempted."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Output tokens so far, the ones of earlier attempts included: the position of the next one."""
        return len(self.token_ids) - self.num_prompt_tokens

    def new_row(self) -> NewRow:
        """What the worker needs to know when the request takes a row. The list is a copy: both sides append."""
        return NewRow(
            request_id=self.request_id,
            token_ids=self.token_ids.copy(),
            num_prompt_tokens=self.num_prompt_tokens,
            params=self.params,
        )
