"""A conversation of `kvasir chat`: its messages, the request for the next answer, and its display."""

import sys
import time
from dataclasses import dataclass
from typing import Any, Final, TextIO

from kvasir.cli.api_client import ApiServer, Event, parts

Message = dict[str, str]
_DIM: Final = "\x1b[2m"
_PLAIN: Final = "\x1b[0m"


@dataclass(frozen=True)
class Display:
    """Settings of the output."""

    hides_reasoning: bool = False
    has_stats: bool = False
    has_colour: bool = False
    """Standard output is a terminal that shows dim text."""


class Conversation:
    # Only complete answers are added to the messages.
    def __init__(
        self, server: ApiServer, model: str, system: str | None, fields: dict[str, Any], display: Display
    ) -> None:
        self._server = server
        self._fields = fields
        self._model = model
        self._display = display
        self.set_system(system or "")

    @property
    def title(self) -> str:
        return f"{self._model} at {self._server.url}"

    def set_system(self, text: str) -> None:
        """Start a new conversation with this system message; "": without one."""
        self._system: list[Message] = [{"role": "system", "content": text}] if text else []
        self.reset()

    def reset(self) -> None:
        self._messages = list(self._system)

    def ask(self, text: str) -> None:
        """Print the answer as it streams in."""
        asked: list[Message] = [*self._messages, {"role": "user", "content": text.strip()}]
        body = {"model": self._model, "messages": asked, **self._fields}
        if self._display.has_stats:
            body["stream_options"] = {"include_usage": True}
        printer, stats = _Printer(self._display), _Stats()
        try:
            for event in self._server.stream("/v1/chat/completions", body):
                stats.take(event)
                for reasoning, content in parts(event, _texts):
                    printer.reasoning(reasoning)
                    printer.content(content)
        finally:
            printer.end_reasoning()
        print()
        if self._display.has_stats:
            _on_error(str(stats), self._display)
        self._messages = [*asked, {"role": "assistant", "content": printer.text}]


class _Printer:
    # Reasoning is dim, or between marks on standard error; the content is on standard output.
    def __init__(self, display: Display) -> None:
        self._display = display
        self._reasons = False
        self.text = ""

    def reasoning(self, text: str) -> None:
        if not text or self._display.hides_reasoning:
            return
        if not self._reasons:
            self._reasons = True
            self._write(_DIM if self._display.has_colour else "<think>\n")
        self._write(text)

    def content(self, text: str) -> None:
        if not text:
            return
        self.end_reasoning()
        self.text += text
        print(text, end="", flush=True)

    def end_reasoning(self) -> None:
        if self._reasons:
            self._reasons = False
            self._write(f"{_PLAIN}\n\n" if self._display.has_colour else "\n</think>\n")

    def _write(self, text: str) -> None:
        print(text, end="", file=_stream_of(self._display), flush=True)


class _Stats:
    # Tokens are those that the server reports, else chunks.
    def __init__(self) -> None:
        self._start = time.monotonic()
        self._first = self._last = 0.0
        self._chunks = 0
        self._tokens: int | None = None

    def take(self, event: Event) -> None:
        usage = event.get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            self._tokens = usage["completion_tokens"]
        if event.get("choices") and any(any(pair) for pair in parts(event, _texts)):
            self._last = time.monotonic()
            self._first = self._first or self._last
            self._chunks += 1

    def __str__(self) -> str:
        if not self._chunks:
            return "[no text]"
        tokens = self._chunks if self._tokens is None else self._tokens
        seconds = self._last - self._first
        rate = f", {(tokens - 1) / seconds:.1f} tokens/s" if tokens > 1 and seconds > 0 else ""
        unit = "token" if tokens == 1 else "tokens"
        return f"[{tokens} {unit}, the first after {self._first - self._start:.2f} s{rate}]"


def _texts(choice: Any) -> tuple[str, str]:
    # Servers name the reasoning in one of two ways.
    delta = choice["delta"]
    return str(delta.get("reasoning_content") or delta.get("reasoning") or ""), str(delta.get("content") or "")


def _stream_of(display: Display) -> TextIO:
    return sys.stdout if display.has_colour else sys.stderr


def _on_error(text: str, display: Display) -> None:
    print(f"{_DIM}{text}{_PLAIN}" if display.has_colour and sys.stderr.isatty() else text, file=sys.stderr)
