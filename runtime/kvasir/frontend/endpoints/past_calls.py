"""Tool calls of a history in the form for chat templates."""

import logging
import secrets
import string
from typing import Any, Final

import orjson

from kvasir.frontend.errors import bad_field
from kvasir.hub.chat_templates.chat_template import count_values
from kvasir.process.seldom_log import SeldomLog

log = SeldomLog(logging.getLogger(__name__), every=3600.0)

# in the arguments of all tool calls: a template writes them as JSON in one step, in about 1 µs each
MAX_ARGUMENT_VALUES: Final = 50_000

# these templates reject ids other than 9 letters and digits
_MISTRAL: Final = "mistral"
_ID_CHARACTERS: Final = string.ascii_letters + string.digits

# JSON text for OpenAI; an object for Anthropic and some clients
Arguments = str | dict[str, Any] | None


def template_call(name: str, arguments: Arguments, id: str | None = None) -> dict[str, Any]:
    function = {"name": name, "arguments": _object(arguments)}
    result: dict[str, Any] = {"type": "function", "function": function}
    return result if id is None else {"id": id, **result}


def new_call_id(tool_format: str | None, prefix: str) -> str:
    """Return an id that the chat template accepts in a history."""
    length, prefix = (9, "") if tool_format == _MISTRAL else (24, prefix)
    return prefix + "".join(secrets.choice(_ID_CHARACTERS) for _ in range(length))


class ArgumentCount:
    """Counts the values in the arguments of a request's calls."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._values = 0

    def add(self, arguments: Arguments) -> None:
        """Raises ApiError if the arguments so far would take long to parse."""
        self._values += _count(arguments)
        if self._values > MAX_ARGUMENT_VALUES:
            raise bad_field(
                self._field,
                f"{self._field}: the arguments of the tool calls have more than {MAX_ARGUMENT_VALUES} values: "
                "shorten the history",
            )


def _object(arguments: Arguments) -> dict[str, Any]:
    # the model may have written another value, which must not end the chat
    if isinstance(arguments, dict):
        return arguments
    if not arguments:
        return {}
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        parsed = None
    if isinstance(parsed, dict):
        return parsed
    log.info("a tool call in the history has arguments that are not a JSON object: the template gets none")
    return {}


def _count(arguments: Arguments) -> int:
    if isinstance(arguments, dict):
        return count_values(arguments, MAX_ARGUMENT_VALUES)
    text = arguments or ""
    return text.count(",") + text.count("[") + text.count("{")
