"""The answers of chats with a parser: reasoning, content and tool calls, whole and as deltas."""

from collections.abc import Sequence

from msgspec import UNSET

from kvasir.client.async_llm import Delta
from kvasir.frontend.endpoints.chat.answer import (
    AnswerWriter,
    CalledFunction,
    ChatAnswer,
    ChatChunkChoice,
    ChatDelta,
    ChatMessage,
    ChatToolCall,
    FunctionDelta,
    ToolCallDelta,
)
from kvasir.frontend.endpoints.output_plan import OutputPlan
from kvasir.frontend.endpoints.past_calls import new_call_id
from kvasir.frontend.endpoints.tool_use import ToolUse
from kvasir.frontend.generation.answer_parts import CompletionTokensDetails, Usage
from kvasir.frontend.generation.generation import Choice
from kvasir.frontend.generation.parsed_text import ParsedText
from kvasir.frontend.parsers.parsed import (
    CallArguments,
    CallBegun,
    ContentText,
    ParsedEvent,
    ReasoningText,
)
from kvasir.link.protocol import FinishReason


class ParsedWriter:
    """Writes choices as AnswerWriter does, with a parser for each."""

    def __init__(
        self,
        writer: AnswerWriter,
        plan: OutputPlan,
        *,
        shows_reasoning: bool,
        tool_format: str | None,
    ) -> None:
        self._writer = writer
        self._plan = plan
        self._shows_reasoning = shows_reasoning
        self._tool_format = tool_format
        self._readings: dict[int, _Reading] = {}

    @property
    def reasoning_tokens(self) -> int:
        return sum(reading.text.reasoning_tokens for reading in self._readings.values())

    def usage(self, usage: Usage) -> Usage:
        """Add the reasoning tokens so far, and return the usage."""
        usage.completion_tokens_details = CompletionTokensDetails(self.reasoning_tokens)
        return usage

    def read(self, index: int, delta: Delta) -> list[ChatDelta]:
        """Return the deltas of the choice's message."""
        return self._reading(index).read(delta)

    def deltas(self, index: int, delta: Delta) -> list[ChatChunkChoice]:
        """Return the choices of the next chunks: all about the tokens in the first, the finish reason in the last.

        Empty while the text may be the beginning of a mark, unless tokens are reported.
        """
        pieces = self.read(index, delta)
        whole = self._writer.delta(index, delta)
        if delta.finish_reason is not None:
            pieces.append(ChatDelta())
            whole.finish_reason = self._reading(index).finish_reason(delta.finish_reason)
        elif not pieces:
            whole.delta = ChatDelta()
            reports = whole.logprobs is not None or whole.token_ids is not UNSET
            return [whole] if reports else []
        return _spread(whole, pieces)

    def answer(self, id: str, created: int, model: str, choices: Sequence[Choice], usage: Usage) -> ChatAnswer:
        answer = self._writer.answer(id, created, model, choices, usage)
        for index, choice in enumerate(choices):
            reading = self._reading(index)
            if not reading.ended:  # beam search has no deltas
                reading.read(Delta(choice.text, choice.token_ids, choice.finish_reason))
            written = answer.choices[index]
            written.message = reading.message(self._writer.echo)
            assert choice.finish_reason is not None
            written.finish_reason = reading.finish_reason(choice.finish_reason)
        answer.usage = self.usage(usage)
        return answer

    def _reading(self, index: int) -> "_Reading":
        if (reading := self._readings.get(index)) is None:
            plan = self._plan
            reading = _Reading(plan.parsed_text(), plan.use, self._shows_reasoning, self._tool_format)
            self._readings[index] = reading
        return reading


class _Reading:
    """The output of one choice so far."""

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
        """Return the deltas of the message, with neighbours of one kind joined."""
        events = self.text.events(delta)
        self.ended = delta.finish_reason is not None
        return [piece for event in _joined(events) if (piece := self._take(event)) is not None]

    def finish_reason(self, reason: FinishReason) -> str:
        # In OpenAI's API, a named function that was called is a normal end.
        if not self.text.ends_with_calls or self._use.is_named or reason is not FinishReason.STOP:
            return reason
        return "function_call" if self._use.is_older_form else "tool_calls"

    def message(self, echo: str) -> ChatMessage:
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


def _joined(events: Sequence[ParsedEvent]) -> list[ParsedEvent]:
    """Join neighbouring texts of one kind, and drop empty ones."""
    result: list[ParsedEvent] = []
    for event in events:
        last = result[-1] if result else None
        match event, last:
            case CallBegun(), _:
                result.append(event)
            case ((ReasoningText() | ContentText() | CallArguments()), _) if not event.text:
                pass
            case ReasoningText(text), ReasoningText(before):
                result[-1] = ReasoningText(before + text)
            case ContentText(text), ContentText(before):
                result[-1] = ContentText(before + text)
            case CallArguments(index, text), CallArguments(same, before) if index == same:
                result[-1] = CallArguments(index, before + text)
            case _:
                result.append(event)
    return result


def _spread(whole: ChatChunkChoice, pieces: Sequence[ChatDelta]) -> list[ChatChunkChoice]:
    """Return a choice for each delta. `whole`: everything else."""
    if len(pieces) == 1:
        whole.delta = pieces[0]
        return [whole]
    index, last = whole.index, pieces[-1]
    return [
        ChatChunkChoice(index, pieces[0], whole.logprobs, token_ids=whole.token_ids),
        *(ChatChunkChoice(index, piece) for piece in pieces[1:-1]),
        ChatChunkChoice(index, last, None, whole.finish_reason, whole.stop_reason),
    ]
