"""The loop of the programs that follow a script: three calls of one function, then an answer."""

import json
from collections.abc import Callable
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
TOOL: Final[Any] = {
    "type": "function",
    "function": {"name": "get_weather", "description": DESCRIPTION, "parameters": SCHEMA},
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


def chat_loop(ask: Callable[[list[Any]], Any]) -> None:
    """Answer calls of tools until there are none. `ask` returns the choice for a list of messages."""
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    reasons = []
    while True:
        choice = ask(messages)
        reasons.append(choice.finish_reason)
        if not choice.message.tool_calls:
            break
        # openai-python's streams add the parsed arguments.
        without = {"tool_calls": {"__all__": {"parsed"}}}
        messages.append(choice.message.model_dump(exclude_none=True, exclude=without))
        for call in choice.message.tool_calls:
            result = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    check(choice.message.content)
    assert reasons == REASONS, reasons
