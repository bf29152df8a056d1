"""The loop of the programs that follow a script: three calls of one function, then an answer."""

from typing import Any, Final

QUESTION: Final = "What is the weather in Oslo, New York and Kyiv?"
CITIES: Final = ["Oslo", "New\nYork", 'Kyiv "east"']
ANSWER: Final = "It is sunny in all three."
DESCRIPTION: Final = "Get the weather in a city."
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
REASONS: Final = ["tool_calls", "tool_calls", "tool_calls", "stop"]
_asked: list[str] = []


def get_weather(city: str) -> str:
    """Get the weather in a city."""
    _asked.append(city)
    return "sunny"


def check(answer: str | None) -> None:
    """The function was called for each city, and this is the answer after that."""
    asked = _asked.copy()
    _asked.clear()
    assert asked == CITIES, asked
    assert answer == ANSWER, answer
