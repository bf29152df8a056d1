"""The response object of POST /v1/responses, whole or in one of the states of its stream."""

import time
from typing import Any, Final, Literal

from msgspec import Struct

from kvasir.frontend.answer_parts import Usage
from kvasir.frontend.endpoints.responses.items import OutputStruct
from kvasir.frontend.endpoints.responses.request import ResponsesRequest
from kvasir.frontend.errors import ApiError
from kvasir.link.protocol import FinishReason
from kvasir.request.params import SamplingParams

Status = Literal["in_progress", "completed", "incomplete", "failed"]

ErrorCode = Literal["invalid_prompt", "rate_limit_exceeded", "server_error"]

_ERROR_CODES: Final[dict[int, ErrorCode]] = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""Codes by HTTP status; the default is server_error."""


def status_of(reason: FinishReason | None) -> Literal["completed", "incomplete"]:
    return "incomplete" if reason is FinishReason.LENGTH else "completed"


class ResponseFailure(Struct):
    code: ErrorCode
    message: str


class IncompleteDetails(Struct):
    reason: Literal["max_output_tokens"]


class InputTokensDetails(Struct):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(Struct):
    reasoning_tokens: int


class ResponseUsage(Struct):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseAnswer(Struct, kw_only=True):
    """OpenAI's response object."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Status
    background: bool
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    prompt_cache_key: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[Any]
    top_logprobs: int
    truncation: Literal["auto", "disabled"]
    user: str | None
    model: str
    previous_response_id: None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    top_p: float
    output: list[OutputStruct]
    # null while the response is in progress.
    usage: ResponseUsage | None


class ResponseObject:
    def __init__(self, body: ResponsesRequest, params: SamplingParams, model: str, unique: str) -> None:
        """`unique`: part of the id that no other response has."""
        self.id = f"resp_{unique}"
        self._created = int(time.time())
        self._model = model
        self._params = params
        self._repeated = body.repeat_fields()

    def begin(self) -> ResponseAnswer:
        return self._state("in_progress", [])

    def finish(
        self, output: list[OutputStruct], reason: FinishReason | None, usage: ResponseUsage
    ) -> ResponseAnswer:
        status = status_of(reason)
        incomplete = IncompleteDetails("max_output_tokens") if status == "incomplete" else None
        return self._state(status, output, incomplete_details=incomplete, usage=usage)

    def fail(self, output: list[OutputStruct], error: ApiError, usage: ResponseUsage) -> ResponseAnswer:
        failure = ResponseFailure(_ERROR_CODES.get(error.status, "server_error"), error.message)
        return self._state("failed", output, error=failure, usage=usage)

    def _state(
        self,
        status: Status,
        output: list[OutputStruct],
        *,
        error: ResponseFailure | None = None,
        incomplete_details: IncompleteDetails | None = None,
        usage: ResponseUsage | None = None,
    ) -> ResponseAnswer:
        return ResponseAnswer(
            id=self.id,
            object="response",
            created_at=self._created,
            completed_at=int(time.time()) if status == "completed" else None,
            status=status,
            background=False,
            error=error,
            incomplete_details=incomplete_details,
            **self._repeated,
            model=self._model,
            previous_response_id=None,
            service_tier="default",
            store=False,
            temperature=self._params.temperature,
            top_p=self._params.top_p,
            output=output,
            usage=usage,
        )


def usage_of(usage: Usage, reasoning_tokens: int) -> ResponseUsage:
    return ResponseUsage(
        usage.prompt_tokens,
        InputTokensDetails(usage.prompt_tokens_details.cached_tokens, 0),
        usage.completion_tokens,
        OutputTokensDetails(reasoning_tokens),
        usage.total_tokens,
    )
