"""The log probabilities of a response's text, if the request asks for them."""

from kvasir.client.async_llm import Delta
from kvasir.frontend.answer_parts import TokenLogprob
from kvasir.frontend.generation import logprobs
from kvasir.frontend.parsers.parsed import ContentText, ParsedEvent


class TextScores:
    """Assigns the log probabilities of tokens to the texts of messages."""

    # the API has no place for those of reasoning and calls
    def __init__(self, names: logprobs.TokenNames, top: int | None) -> None:
        """`top`: None means no log probabilities."""
        self._names = names
        self._top = top
        self._held: list[TokenLogprob] = []
        """Log probabilities of tokens without text yet."""
        self._in_message = True
        self.count = 0

    def of(self, delta: Delta, events: list[ParsedEvent]) -> list[TokenLogprob]:
        """Return the log probabilities of the first message text of a delta."""
        # final tokens without text get an event with an empty text
        if self._top is None:
            return []
        entries = self._held + self._entries(delta, self._top)
        self._held = []
        if events:
            self._in_message = isinstance(events[-1], ContentText)
        if not any(isinstance(event, ContentText) for event in events):
            if events or not self._in_message:
                return []
            if delta.finish_reason is None:
                self._held = entries
                return []
            events.append(ContentText(""))
        self.count += (self._top + 1) * len(entries)
        return entries

    def _entries(self, delta: Delta, top: int) -> list[TokenLogprob]:
        if delta.logprobs is None:
            return []
        return logprobs.of_chat(self._names, delta.token_ids, delta.logprobs, top).content
