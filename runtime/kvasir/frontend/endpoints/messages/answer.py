"""The answer of POST /v1/messages as an object: whole, or before its content."""

from typing import Any

from kvasir.client.async_llm import Delta
from kvasir.frontend.generation.parsed_text import ParsedText
from kvasir.link.protocol import FinishReason


class MessageObject:
    """Writes one message, as dictionaries for JSON."""

    def __init__(self, id: str, model: str, text: ParsedText, bounded_by_context: bool) -> None:
        """`id`: the answer's. `bounded_by_context`: the context is smaller than max_tokens."""
        self._id = id
        self._model = model
        self._text = text
        self._length = "model_context_window_exceeded" if bounded_by_context else "max_tokens"

    def begun(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the message before its content. `usage`: Generation's, here and below."""
        stop = {"stop_reason": None, "stop_sequence": None}
        return self._message([], stop, {**self.usage(usage), "output_tokens": 0})

    def finished(self, content: list[dict[str, Any]], last: Delta, usage: dict[str, Any]) -> dict[str, Any]:
        return self._message(content, self.stop(last), self.usage(usage))

    def stop(self, last: Delta) -> dict[str, Any]:
        """Return why the message ended."""
        if last.finish_reason is FinishReason.LENGTH:
            return {"stop_reason": self._length, "stop_sequence": None}
        if self._text.ends_with_calls:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if isinstance(last.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": last.stop_reason}
        return {"stop_reason": "end_turn", "stop_sequence": None}

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return a Generation's usage under the names of this API, which counts cached tokens apart."""
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        result = {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
        }
        if thinking := self._text.reasoning_tokens:
            result["output_tokens_details"] = {"thinking_tokens": thinking}
        return result

    def _message(self, content: list[Any], stop: dict[str, Any], usage: dict[str, Any]) -> dict[str, Any]:
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._model, "content": content}
        return {**head, **stop, "usage": usage}
