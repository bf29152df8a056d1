"""The message of a chat from the parsed output: reasoning, content and tool calls, whole and as deltas."""

from kvasir.client.async_llm import Delta
from kvasir.frontend.endpoints.chat.answer import (
    CalledFunction,
    ChatDelta,
    ChatMessage,
    ChatToolCall,
    FunctionDelta,
    ToolCallDelta,
)
from kvasir.frontend.endpoints.past_calls import new_call_id
from kvasir.frontend.endpoints.tool_use import ToolUse
from kvasir.frontend.generation.parsed_text import ParsedText
from kvasir.frontend.parsers.parsed import (
    CallArguments,
    CallBegun,
    ContentText,
    ParsedEvent,
    ReasoningText,
)
from kvasir.link.protocol import FinishReason


class ParsedMessage:
    """The message of one choice, as far as its output has come."""

    def __init__(self, text: ParsedText, use: ToolUse, shows_reasoning: bool, tool_format: str | None) -> None:
        self.text = text
        self.ended = False
        self._use = use
        self._shows_reasoning = shows_reasoning
        self._tool_format = tool_format
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[ChatToolCall] = []
        self._arguments: list[list[str]] = []

    def read(self, delta: Delta) -> list[ChatDelta]:
        """Return the deltas of the message, one for each event."""
        events = self.text.events(delta)
        self.ended = delta.finish_reason is not None
        return [piece for event in events if (piece := self._take(event)) is not None]

    def finish_reason(self, reason: FinishReason) -> str:
        # In OpenAI's API, a named function that was called is a normal end.
        if not self.text.ends_with_calls or self._use.is_named or reason is not FinishReason.STOP:
            return reason
        return "function_call" if self._use.is_older_form else "tool_calls"

    def whole(self, echo: str) -> ChatMessage:
        """Return the message with the echo before its content."""
        message = ChatMessage("assistant", echo + "".join(self._content) or None)
        if self._reasoning:
            message.reasoning_content = message.reasoning = "".join(self._reasoning)
        for call, arguments in zip(self._calls, self._arguments, strict=True):
            call.function.arguments = "".join(arguments)
        if self._calls and self._use.is_older_form:
            message.function_call = self._calls[0].function
        elif self._calls:
            message.tool_calls = self._calls
        return message

    def _take(self, event: ParsedEvent) -> ChatDelta | None:
        match event:
            case ReasoningText(text):
                if not self._shows_reasoning:
                    return None
                self._reasoning.append(text)
                # Clients read one or the other: DeepSeek's name or OpenRouter's; vLLM has had both.
                return ChatDelta(reasoning_content=text, reasoning=text)
            case ContentText(text):
                self._content.append(text)
                return ChatDelta(content=text)
            case CallBegun(index, name):
                return self._begin(index, name)
            case CallArguments(index, text):
                self._arguments[index].append(text)
                return self._call_delta(ToolCallDelta(index, FunctionDelta(text)))

    def _begin(self, index: int, name: str) -> ChatDelta:
        call = ChatToolCall(new_call_id(self._tool_format, "call_"), "function", CalledFunction(name, ""))
        self._calls.append(call)
        self._arguments.append([])
        return self._call_delta(ToolCallDelta(index, FunctionDelta("", name), call.id, call.type))

    def _call_delta(self, call: ToolCallDelta) -> ChatDelta:
        if self._use.is_older_form:
            return ChatDelta(function_call=call.function)
        return ChatDelta(tool_calls=[call])
