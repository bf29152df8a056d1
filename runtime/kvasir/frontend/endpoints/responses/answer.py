"""The response object of POST /v1/responses, whole or in one of the states of its stream."""

import time
from typing import Any, Final, Literal

from kvasir.frontend.endpoints.responses.request import ResponsesRequest
from kvasir.frontend.errors import ApiError
from kvasir.link.protocol import FinishReason
from kvasir.params import SamplingParams

Status = Literal["in_progress", "completed", "incomplete", "failed"]

_ERROR_CODES: Final = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""Of a response that failed, by HTTP status; the others are server errors."""


def status_of(reason: FinishReason | None) -> Status:
    return "incomplete" if reason is FinishReason.LENGTH else "completed"


def text_part(text: str, logprobs: list[Any]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


class ResponseObject:
    """Writes the states of one response, as dictionaries for JSON. Most fields repeat the request."""

    def __init__(self, body: ResponsesRequest, params: SamplingParams, model: str, unique: str) -> None:
        """`params`: the effective ones. `unique`: part of the ids, which no other response has."""
        self.item_id = f"msg_{unique}"
        self._id = f"resp_{unique}"
        self._created = int(time.time())
        self._fields: dict[str, Any] = {
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "metadata": body.metadata or {},
            "model": model,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": None, "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": False,
            "temperature": params.temperature,
            "text": {"format": {"type": "text"}, "verbosity": "medium"},
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": params.top_p,
            "truncation": body.truncation or "disabled",
            "user": body.user,
        }

    @property
    def id(self) -> str:
        return self._id

    def begun(self) -> dict[str, Any]:
        return self._state("in_progress", [])

    def finished(
        self, text: str, logprobs: list[Any], reason: FinishReason | None, usage: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the completed response, or the incomplete one if `reason` is the length. `usage`: Generation's."""
        status = status_of(reason)
        item = self.item(status, [text_part(text, logprobs)])
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return self._state(status, [item], incomplete_details=incomplete, usage=_usage(usage))

    def failed(self, text: str, error: ApiError, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the response that ended with an error in the middle of its text."""
        output = [self.item("incomplete", [text_part(text, [])])] if text else []
        told = {"code": _ERROR_CODES.get(error.status, "server_error"), "message": error.message}
        return self._state("failed", output, error=told, usage=_usage(usage))

    def item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the one output item: the assistant's message."""
        return {"id": self.item_id, "type": "message", "status": status, "role": "assistant", "content": content}

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


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    """Return a Generation's usage under the names of this API."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "cache_write_tokens": 0,
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }
