"""Complete outputs are checked against the grammars of their requests."""

import json
from typing import Any

import jsonschema
import pytest

from kvasir.chaos.constrained import CONSTRAINED, JSON_SCHEMA, REGEX, TOOLS, invalid

PODS: dict[str, Any] = {"pods": [{"state": "ready", "restarts": 0}, {"state": "failed", "restarts": 99}]}
ARGUMENTS: dict[str, Any] = {"city": "Oslo", "detailed": True}
TEXT = "busy ab cd ef"


def chat(value: object, reason: str = "stop") -> dict[str, Any]:
    text = value if isinstance(value, str) else json.dumps(value)
    return {"choices": [{"index": 0, "message": {"content": text}, "finish_reason": reason}]}


def call(arguments: object, name: str = "get_weather", count: int = 1) -> dict[str, Any]:
    """As joined from a stream."""
    calls = [{"index": 0, "function": {"name": name, "arguments": json.dumps(arguments)}}] * count
    return {"choices": [{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}


def words(text: str, reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": reason}]}


def test_valid_outputs_pass() -> None:
    assert invalid(JSON_SCHEMA, chat(PODS)) == ""
    assert invalid(TOOLS, call(ARGUMENTS)) == ""
    assert invalid(REGEX, words(TEXT)) == ""
    assert invalid("greedy", words("anything")) == ""


def test_the_examples_match_what_is_asked_for() -> None:
    """The checks written by hand agree with the schemas that are sent."""
    jsonschema.validate(PODS, CONSTRAINED[JSON_SCHEMA]["response_format"]["json_schema"]["schema"])
    jsonschema.validate(ARGUMENTS, CONSTRAINED[TOOLS]["tools"][0]["function"]["parameters"])


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (JSON_SCHEMA, chat("{")),
        (JSON_SCHEMA, chat({"pods": PODS["pods"][:1]})),
        (JSON_SCHEMA, chat({"pods": PODS["pods"] * 3})),
        (JSON_SCHEMA, chat({**PODS, "more": 1})),
        (JSON_SCHEMA, chat({"pods": [{"state": "lost", "restarts": 0}] * 2})),
        (JSON_SCHEMA, chat({"pods": [{"state": "ready", "restarts": 100}] * 2})),
        (JSON_SCHEMA, chat({"pods": [{"state": "ready", "restarts": True}] * 2})),
        (JSON_SCHEMA, {"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}),
        (REGEX, words("busy ab cd")),
        (REGEX, words(f"{TEXT}\n")),
        (TOOLS, call(ARGUMENTS, count=2)),
        (TOOLS, call(ARGUMENTS, name="other")),
        (TOOLS, call({"city": "Oslo"})),
        (TOOLS, call({"city": "O" * 13, "detailed": True})),
        (TOOLS, call({"city": "Oslo", "detailed": 1})),
        (TOOLS, chat("It is sunny.")),
    ],
)
def test_invalid_outputs_are_found(kind: str, content: dict[str, Any]) -> None:
    assert invalid(kind, content).startswith("invalid output of choice 0: ")


def test_output_that_was_cut_is_not_checked() -> None:
    assert invalid(JSON_SCHEMA, chat('{"pods": [', reason="length")) == ""
    assert invalid(REGEX, words("busy", reason="length")) == ""
