"""The response object of POST /v1/responses, whole or in one of the states of its stream."""

import time
from typing import Any, Final, Literal

from kvasir.frontend.endpoints.responses.request import ResponsesRequest
from kvasir.frontend.errors import ApiError
from kvasir.link.protocol import FinishReason
from kvasir.request.params import SamplingParams

Status = Literal["in_progress", "completed", "incomplete", "failed"]

_ERROR_CODES: Final = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""Of a response that failed, by HTTP status; the others are server errors."""


def status_of(reason: FinishReason | None) -> Literal["completed", "incomplete"]:
    return "incomplete" if reason is FinishReason.LENGTH else "completed"


class ResponseObject:
    """Writes the states of one response, as dictionaries for JSON. Most fields repeat the request."""

    def __init__(self, body: ResponsesRequest, params: SamplingParams, model: str, unique: str) -> None:
        """`params`: the effective ones. `unique`: part of the id, which no other response has."""
        self._id = f"resp_{unique}"
        self._created = int(time.time())
        self._fields: dict[str, Any] = {
            **body.repeated(),
            "model": model,
            "previous_response_id": None,
            "service_tier": "default",
            "store": False,
            "temperature": params.temperature,
            "top_p": params.top_p,
        }

    @property
    def id(self) -> str:
        return self._id

    def begun(self) -> dict[str, Any]:
        return self._state("in_progress", [])

    def finished(
        self, output: list[dict[str, Any]], reason: FinishReason | None, usage: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the completed response, or the incomplete one if `reason` is the length. `usage`: `usage_of`."""
        status = status_of(reason)
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return self._state(status, output, incomplete_details=incomplete, usage=usage)

    def failed(self, output: list[dict[str, Any]], error: ApiError, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the response that ended with an error in the middle of its output."""
        told = {"code": _ERROR_CODES.get(error.status, "server_error"), "message": error.message}
        return self._state("failed", output, error=told, usage=usage)

    def _state(self, status: Status, output: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            **self._fields,
            "output": output,
            "usage": None,
            **more,
        }


def usage_of(usage: dict[str, Any], reasoning_tokens: int) -> dict[str, Any]:
    """Return a Generation's usage under the names of this API."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "cache_write_tokens": 0,
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": usage["total_tokens"],
    }
