"""The messages of a chat, and the form in which the chat template gets them.

A history has messages that other servers wrote: fields that are not known here are ignored, and logged. Templates
expect messages as transformers describes them: a content of texts, the arguments of a tool call as an object.
"""

import logging
from collections.abc import Mapping
from typing import Annotated, Any, Final

import orjson
from pydantic import ConfigDict, Field

from kvasir.frontend.endpoints.request_body import BodyPart
from kvasir.frontend.errors import bad_field
from kvasir.hub.chat_template import count_values
from kvasir.observability.seldom_log import SeldomLog

log = SeldomLog(logging.getLogger(__name__), every=3600.0)

TEMPLATE_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""Role of a message → role for the template. Few templates know the names `developer` and `function`."""
TEXT_PARTS: Final = {"text": "text", "refusal": "refusal", "input_text": "text", "output_text": "text"}
"""Type of a part → its field with the text."""
MAX_ARGUMENT_VALUES: Final = 50_000
"""Values in the arguments of all tool calls of a request: a template writes them as JSON in one step, in about 1 µs
each."""
_LONGEST_NAME: Final = 64


class TextPart(BodyPart):
    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(BodyPart):
    name: str
    arguments: str | dict[str, Any] | None = None
    """JSON in a text, as OpenAI has it; some clients send the object."""


class ToolCall(BodyPart):
    function: FunctionCall
    id: str | None = None


class Message(BodyPart):
    model_config = ConfigDict(extra="allow")

    role: str
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    """Of an assistant."""
    tool_call_id: str | None = None
    """Of a tool: the call that it answers."""
    function_call: FunctionCall | None = None
    """The older form of `tool_calls`."""
    refusal: str | None = None
    """The text of an assistant that has no other content."""
    reasoning_content: str | None = None
    """The thoughts of an assistant, for templates that repeat them."""
    reasoning: str | None = None
    """vLLM's newer name of `reasoning_content`."""


Messages = Annotated[list[Message], Field(fail_fast=True)]


def template_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """The messages as the chat template gets them. Raises ApiError for what has no text."""
    if not messages:
        raise bad_field("messages", "messages: the list is empty")
    _check_arguments(messages)
    return [_template_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _template_message(message: Message, path: str) -> dict[str, Any]:
    if (role := TEMPLATE_ROLES.get(message.role)) is None:
        roles = ", ".join(TEMPLATE_ROLES)
        raise bad_field(f"{path}.role", f"{path}.role: {message.role!r} is not a role: use one of {roles}")
    if message.model_extra:
        _log_ignored(message.model_extra, "messages[]")
    result: dict[str, Any] = {"role": role, "content": _content(message, path)}
    if message.name is not None:
        result["name"] = message.name
    if message.tool_call_id is not None:
        result["tool_call_id"] = message.tool_call_id
    if role == "assistant":
        if calls := _tool_calls(message):
            result["tool_calls"] = calls
        if thoughts := message.reasoning_content or message.reasoning:
            result["reasoning_content"] = thoughts
    return result


def _content(message: Message, path: str) -> str | list[dict[str, str]]:
    if isinstance(message.content, str):
        return message.content
    if message.content is not None:
        texts = [_text_of(part, f"{path}.content[{index}]") for index, part in enumerate(message.content)]
        return [{"type": "text", "text": text} for text in texts]
    if TEMPLATE_ROLES[message.role] in ("assistant", "tool"):  # it called a tool, or has nothing to report
        return message.refusal or ""
    raise bad_field(f"{path}.content", f"{path}.content is missing")


def _text_of(part: TextPart, path: str) -> str:
    if (field := TEXT_PARTS.get(part.type)) is None:
        raise bad_field(f"{path}.type", f"{path}.type: {part.type!r} is not supported: the model reads text only")
    text: str | None = getattr(part, field)
    if text is None:
        raise bad_field(f"{path}.{field}", f"{path}.{field} is missing")
    if part.model_extra:
        _log_ignored(part.model_extra, "messages[].content[]")
    return text


# ------------------------------------------------------------------------------------------------ tool calls


def _tool_calls(message: Message) -> list[dict[str, Any]]:
    calls = message.tool_calls or []
    if not calls and message.function_call is not None:
        calls = [ToolCall(function=message.function_call)]
    return [_tool_call(call) for call in calls]


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": _arguments(call.function)}
    result: dict[str, Any] = {"type": "function", "function": function}
    return result if call.id is None else {"id": call.id, **result}


def _arguments(function: FunctionCall) -> dict[str, Any]:
    """An object, as templates expect. The model may have written something else: this must not end the chat."""
    if isinstance(function.arguments, dict):
        return function.arguments
    if not function.arguments:
        return {}
    try:
        parsed = orjson.loads(function.arguments)
    except orjson.JSONDecodeError:
        parsed = None
    if isinstance(parsed, dict):
        return parsed
    log.info("a tool call in the history has arguments that are not a JSON object: the template gets none")
    return {}


def _check_arguments(messages: list[Message]) -> None:
    """Raises ApiError for arguments that would take long to parse."""
    values = 0
    for message in messages:
        for call in message.tool_calls or ():
            values += _argument_values(call.function)
        if message.function_call is not None:
            values += _argument_values(message.function_call)
    if values > MAX_ARGUMENT_VALUES:
        raise bad_field(
            "messages",
            f"messages: the arguments of the tool calls have more than {MAX_ARGUMENT_VALUES} values: shorten the "
            "history",
        )


def _argument_values(function: FunctionCall) -> int:
    """Return about how many values the arguments have."""
    if isinstance(function.arguments, dict):
        return count_values(function.arguments, MAX_ARGUMENT_VALUES)
    text = function.arguments or ""
    return text.count(",") + text.count("[") + text.count("{")


def _log_ignored(fields: Mapping[str, Any], where: str) -> None:
    for name, value in fields.items():
        if value not in (None, [], {}, ""):
            shown = name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "…"
            log.info(f"a request has the unknown field {where}.{shown}, which is ignored")
