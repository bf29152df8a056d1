"""A loop of three tool calls as models write it in each format: three calls of one function, then the answer."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from runtime.frontend.harness import Frontend
from runtime.frontend.parsed_models import running_model
from runtime.frontend.talking import tokens_of

FUNCTION: Final = "get_weather"
CITIES: Final = ("Oslo", "New\nYork", 'Kyiv "east"')
ANSWER: Final = "It is sunny in all three."
TEXT: Final = "I look it up."
"""Before the second call, in formats that allow it."""


def _json(city: str) -> str:
    """The arguments with the line break as it is, which JSON forbids and models write."""
    return json.dumps({"city": city}).replace("\\n", "\n")


def _object(city: str, key: str = "arguments") -> str:
    return f'{{"name": "{FUNCTION}", "{key}": {_json(city)}}}'


_DEEPSEEK: Final = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
FORMATS: Final[dict[str, Callable[[str], str]]] = {
    "hermes": lambda city: f"<tool_call>\n{_object(city)}\n</tool_call>",
    "qwen3_coder": lambda city: (
        f"<tool_call>\n<function={FUNCTION}>\n<parameter=city>\n{city}\n</parameter>\n</function>\n</tool_call>"
    ),
    "llama3_json": lambda city: _object(city, "parameters"),
    "pythonic": lambda city: f"[{FUNCTION}(city={city!r})]",
    "mistral": lambda city: f"[TOOL_CALLS]{FUNCTION}[CALL_ID]abc123XYZ[ARGS]{_json(city)}",
    "deepseek_v31": lambda city: _DEEPSEEK.format(f"{FUNCTION}<｜tool▁sep｜>{_json(city)}"),
    "granite": lambda city: f"<|tool_call|>[{_object(city)}]",
    "openai": lambda city: (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
        f"to=functions.{FUNCTION} <|constrain|>json<|message|>{_json(city)}"
    ),
}
_BARE: Final = ("llama3_json", "pythonic")
"""Formats whose calls stand at the beginning of an output."""


def turns(name: str) -> list[str]:
    first, second, third = map(FORMATS[name], CITIES)
    if name == "openai":
        return [first, second, third, f"<|channel|>final<|message|>{ANSWER}"]
    return [first, second if name in _BARE else f"{TEXT}\n{second}", third, ANSWER]


@asynccontextmanager
async def looping_model(name: str, **chat: Any) -> AsyncIterator[Frontend]:
    """A model of this tool format that calls three times and then answers, again and again."""
    reasoning = "openai_gptoss" if name == "openai" else "none"
    async with running_model(tool_call_parser=name, reasoning_parser=reasoning, **chat) as frontend:
        script = replace(frontend.engine.script, turns=[tokens_of(text) for text in turns(name)])
        frontend.engine.script = script
        yield frontend
