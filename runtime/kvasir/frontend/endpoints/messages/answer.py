"""The answer of POST /v1/messages, whole or as a sequence of events, in bytes."""

from typing import Any

import orjson

from kvasir.client.async_llm import Delta
from kvasir.frontend.endpoints.messages.errors import error_body
from kvasir.frontend.errors import ApiError
from kvasir.frontend.generation.generation import Choice
from kvasir.link.protocol import FinishReason


class MessageWriter:
    """Writes one message. `id`: the answer's. `bounded_by_context`: the context is smaller than max_tokens."""

    def __init__(self, id: str, model: str, bounded_by_context: bool) -> None:
        self._id = id
        self._model = model
        self._length = "model_context_window_exceeded" if bounded_by_context else "max_tokens"

    def whole(self, choice: Choice, usage: dict[str, Any]) -> bytes:
        """`usage`: Generation's, here and below."""
        content = [{"type": "text", "text": choice.text, "citations": None}]
        return orjson.dumps(self._message(content, self._stop(choice), _usage(usage)))

    def opening(self, usage: dict[str, Any]) -> bytes:
        """The events before the first text."""
        begun = _usage(usage) | {"output_tokens": 0}
        message = self._message([], {"stop_reason": None, "stop_sequence": None}, begun)
        block = {"type": "text", "text": "", "citations": None}
        return (
            _event("message_start", message=message)
            + _event("content_block_start", index=0, content_block=block)
            + _event("ping")
        )

    @staticmethod
    def delta(text: str) -> bytes:
        return (
            b"event: content_block_delta\n"
            b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":%b}}\n\n'
        ) % orjson.dumps(text)

    def closing(self, last: Delta, usage: dict[str, Any]) -> bytes:
        """The events after the last text."""
        return (
            _event("content_block_stop", index=0)
            + _event("message_delta", delta=self._stop(last), usage=_usage(usage))
            + _event("message_stop")
        )

    def _message(self, content: list[Any], stop: dict[str, Any], usage: dict[str, Any]) -> dict[str, Any]:
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._model, "content": content}
        return {**head, **stop, "usage": usage}

    def _stop(self, end: Choice | Delta) -> dict[str, Any]:
        if end.finish_reason is FinishReason.LENGTH:
            return {"stop_reason": self._length, "stop_sequence": None}
        if isinstance(end.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": end.stop_reason}
        return {"stop_reason": "end_turn", "stop_sequence": None}


def failure(error: ApiError, request_id: str) -> bytes:
    """Return the last event of a stream that ends with an error."""
    return b"event: error\ndata: %b\n\n" % error_body(error, request_id)


def _event(type: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (type.encode(), orjson.dumps({"type": type, **fields}))


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    """Return a Generation's usage under the names of this API, which counts cached tokens apart."""
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
    }
