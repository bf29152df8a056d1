"""The messages of a chat, and their form for the chat template.

Unknown fields are ignored and logged, because a history may come from other servers. Templates expect transformers'
form: text as content, an object as a call's arguments.
"""

import logging
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field

from kvasir.client.input.chat_templates import RESERVED_VARIABLES
from kvasir.frontend.endpoints.past_calls import ArgumentCount, Arguments, template_call
from kvasir.frontend.errors import bad_field, needed
from kvasir.frontend.request_bodies.request_body import BodyPart
from kvasir.process.seldom_log import SeldomLog

log = SeldomLog(logging.getLogger(__name__), every=3600.0)

# few templates accept the roles `developer` and `function`
TEMPLATE_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
TEXT_PARTS: Final = {"text": "text", "refusal": "refusal", "input_text": "text", "output_text": "text"}
"""Type of a part → its field with the text."""
_LONGEST_NAME: Final = 64


class TextPart(BodyPart):
    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(BodyPart):
    name: str
    arguments: Arguments = None


class ToolCall(BodyPart):
    function: FunctionCall
    id: str | None = None


class Message(BodyPart):
    model_config = ConfigDict(extra="allow")

    role: str
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    """Calls of an assistant."""
    tool_call_id: str | None = None
    """Id of the call that a tool's message answers."""
    function_call: FunctionCall | None = None
    """The older form of `tool_calls`."""
    refusal: str | None = None
    """The text of an assistant that has no other content."""
    reasoning_content: str | None = None
    """The thoughts of an assistant, for templates that repeat them."""
    reasoning: str | None = None
    """vLLM's newer name of `reasoning_content`."""


class TemplateFields(BodyPart):
    """The fields about the chat template."""

    add_generation_prompt: bool | None = None
    """End the prompt with the beginning of the assistant's answer; the default, unless a message is continued."""
    continue_final_message: bool = False
    """End the prompt with the last message, which an answer continues."""
    chat_template: str | None = None
    """Used instead of the model's template, if the server has --trust-request-chat-template."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further variables of the chat template, for example {"enable_thinking": false}."""

    def template_variables(self) -> dict[str, Any]:
        """Raises ApiError for fields that exclude each other, and for reserved names."""
        begins = self.add_generation_prompt
        if begins and self.continue_final_message:
            raise bad_field(
                "continue_final_message",
                "continue_final_message and add_generation_prompt exclude each other: leave out one of them",
            )
        for name in RESERVED_VARIABLES & self.chat_template_kwargs.keys():
            path = f"chat_template_kwargs.{name}"
            raise bad_field(path, f"{path} is not supported: a request cannot set the variable {name}")
        return {
            **self.chat_template_kwargs,
            "chat_template": self.chat_template,
            "add_generation_prompt": not self.continue_final_message if begins is None else begins,
            "continue_final_message": self.continue_final_message,
        }


Messages = Annotated[list[Message], Field(fail_fast=True)]


def template_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Return the messages for the chat template. Raises ApiError for content that is not text."""
    if not messages:
        raise bad_field("messages", "messages: the list is empty")
    for message in messages:
        if message.tool_calls or message.function_call is not None:
            _check_arguments(messages)
            break
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
    text: str = needed(getattr(part, field), f"{path}.{field}")
    if part.model_extra:
        _log_ignored(part.model_extra, "messages[].content[]")
    return text


# ------------------------------------------------------------------------------------------------ tool calls


def _tool_calls(message: Message) -> list[dict[str, Any]]:
    calls = message.tool_calls or []
    if not calls and message.function_call is not None:
        calls = [ToolCall(function=message.function_call)]
    return [template_call(call.function.name, call.function.arguments, call.id) for call in calls]


def _check_arguments(messages: list[Message]) -> None:
    values = ArgumentCount("messages")
    for message in messages:
        for call in message.tool_calls or ():
            values.add(call.function.arguments)
        if message.function_call is not None:
            values.add(message.function_call.arguments)


def _log_ignored(fields: Mapping[str, Any], where: str) -> None:
    for name, value in fields.items():
        if value not in (None, [], {}, ""):
            shown = name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "…"
            log.info(f"a request has the unknown field {where}.{shown}, which is ignored")
