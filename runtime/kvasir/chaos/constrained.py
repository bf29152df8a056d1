"""Requests whose output a grammar constrains, and checks of their answers.

The checks are written for these grammars, without a validator of JSON Schema. They hold for each complete choice.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

JSON_SCHEMA: Final = "json schema"
REGEX: Final = "regex"
TOOLS: Final = "tools"

_STATES: Final = ("ready", "starting", "failed")
_POD: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"state": {"enum": list(_STATES)}, "restarts": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["state", "restarts"],
    "additionalProperties": False,
}
_MIN_PODS: Final = 2
_MAX_PODS: Final = 4
_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"pods": {"type": "array", "items": _POD, "minItems": _MIN_PODS, "maxItems": _MAX_PODS}},
    "required": ["pods"],
    "additionalProperties": False,
}
_WORDS: Final = r"(ready|busy)( [a-z]{2,8}){3,6}"
_MAX_LETTERS: Final = 12
_CITY: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": _MAX_LETTERS}, "detailed": {"type": "boolean"}},
    "required": ["city", "detailed"],
    "additionalProperties": False,
}
_FUNCTION: Final = "get_weather"
# Tokens. The grammars end nearly every output earlier.
_LONGEST: Final = 256
_SEEDED: Final = {"temperature": 1.0, "seed": 11, "max_tokens": _LONGEST}

CONSTRAINED: Final[dict[str, dict[str, Any]]] = {
    JSON_SCHEMA: {
        **_SEEDED,
        "messages": [],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "pods", "schema": _SCHEMA, "strict": True},
        },
    },
    REGEX: {**_SEEDED, "structured_outputs": {"regex": _WORDS}},
    TOOLS: {
        **_SEEDED,
        "messages": [],
        "tools": [{"type": "function", "function": {"name": _FUNCTION, "parameters": _CITY}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    },
}


def invalid(kind: str, content: Mapping[str, Any]) -> str:
    """Return the reason, "" for a valid answer and for a kind without grammar."""
    if kind not in _CHECKS:
        return ""
    for choice in content.get("choices", ()):
        if choice.get("finish_reason") in (None, "length"):
            continue
        try:
            _CHECKS[kind](choice)
        except (LookupError, TypeError, ValueError) as error:
            return f"invalid output of choice {choice.get('index', 0)}: {error} in {json.dumps(choice)[:300]}"
    return ""


def _check_json(choice: Mapping[str, Any]) -> None:
    value = json.loads(_message(choice)["content"])
    _expect(value.keys() == {"pods"} and _MIN_PODS <= len(value["pods"]) <= _MAX_PODS, "not 2 to 4 pods")
    for pod in value["pods"]:
        _expect(pod.keys() == {"state", "restarts"} and pod["state"] in _STATES, "a pod without its state")
        _expect(type(pod["restarts"]) is int and 0 <= pod["restarts"] <= 99, "restarts out of range")


def _check_words(choice: Mapping[str, Any]) -> None:
    _expect(re.fullmatch(_WORDS, choice["text"]) is not None, "no match of the regular expression")


def _check_call(choice: Mapping[str, Any]) -> None:
    calls = _message(choice).get("tool_calls") or []
    _expect(len(calls) == 1, f"{len(calls)} calls instead of 1")
    function = calls[0]["function"]
    _expect(function["name"] == _FUNCTION, f"a call of {function['name']!r}")
    arguments = json.loads(function["arguments"])
    _expect(arguments.keys() == {"city", "detailed"}, f"arguments {sorted(arguments)}")
    _expect(type(arguments["city"]) is str and len(arguments["city"]) <= _MAX_LETTERS, "city is not a short text")
    _expect(type(arguments["detailed"]) is bool, "detailed is not a boolean")


def _message(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    # Of a whole answer, or of the joined chunks of a stream.
    message: Mapping[str, Any] = choice.get("message") or choice["delta"]
    return message


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


_CHECKS: Final[Mapping[str, Callable[[Mapping[str, Any]], None]]] = {
    JSON_SCHEMA: _check_json,
    REGEX: _check_words,
    TOOLS: _check_call,
}
