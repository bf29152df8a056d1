"""Parses the deltas of one choice."""

from typing import Final

from kvasir.client.async_llm import Delta
from kvasir.frontend.parsers.parsed import CallArguments, CallBegun, ContentText, ParsedEvent
from kvasir.frontend.parsers.streaming.emitter import merged
from kvasir.frontend.parsers.streaming.output_parser import StreamingParser
from kvasir.link.protocol import FinishReason

_CALLS: Final = (CallBegun, CallArguments)


class ParsedText:
    """Turns deltas into reasoning, content and tool calls. Without a parser, all text is content."""

    def __init__(self, parser: StreamingParser | None, most_calls: int | None = None) -> None:
        """`most_calls`: further calls are dropped; None: no limit."""
        self._parser = parser
        self._most_calls = most_calls
        self.calls = 0  # tool calls so far

    @property
    def ends_with_calls(self) -> bool:
        """Return whether the client has calls to run. A torn last call does not count."""
        return self.calls > 0 and not (self._parser is not None and self._parser.is_torn)

    @property
    def reasoning_tokens(self) -> int:
        return 0 if self._parser is None else self._parser.reasoning_tokens

    def events(self, delta: Delta) -> list[ParsedEvent]:
        """Return the completed events; with the last delta, all that are left."""
        if self._parser is None:
            return [ContentText(delta.text)] if delta.text else []
        events = self._parser.push(delta.text, delta.token_ids)
        if delta.finish_reason is not None:
            events += self._parser.finish(is_cut=delta.finish_reason is FinishReason.LENGTH)
        events = merged([event for event in events if self._is_wanted(event)])
        self.calls += sum(isinstance(event, CallBegun) for event in events)
        return events

    def _is_wanted(self, event: ParsedEvent) -> bool:
        return self._most_calls is None or not isinstance(event, _CALLS) or event.index < self._most_calls
