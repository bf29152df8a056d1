"""The items in the input of a response, and the chat template's messages for them."""

from typing import Annotated, Any, Final

from pydantic import Field

from kvasir.frontend.endpoints.past_calls import ArgumentCount, Arguments, template_call
from kvasir.frontend.errors import bad_field, needed
from kvasir.frontend.request_bodies.request_body import BodyPart, at_most

MAX_PARTS: Final = 8192

_ROLES: Final = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
"""Chat templates have no developer."""
_TEXT_PARTS: Final = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})


class Part(BodyPart):
    """A part of a message's content, of a reasoning, or of a function's output."""

    type: str
    text: str | None = None
    refusal: str | None = None


Parts = Annotated[str | Annotated[list[Part], Field(fail_fast=True)], at_most(MAX_PARTS)]


class Item(BodyPart):
    """An item of the input: a message, an output item of an earlier response, or the output of a function."""

    type: str = "message"
    role: str | None = None
    content: Parts | None = None
    summary: Annotated[list[Part], Field(fail_fast=True), at_most(MAX_PARTS)] | None = None
    """Text of a reasoning that has no content."""
    call_id: str | None = None
    """Id of a call, also in its output."""
    name: str | None = None
    """Name of the called function."""
    arguments: Arguments = None
    output: Parts | None = None


class InputHistory:
    """Messages for the chat template. Reasoning and calls belong to the assistant's message next to them."""

    def __init__(self, instructions: str | None) -> None:
        self._system = [instructions] if instructions else []
        self._messages: list[dict[str, Any]] = []
        self._thoughts: list[str] = []
        """Reasoning without a message yet."""
        self._names: dict[str, str] = {}
        self._arguments = ArgumentCount("input")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Raises ApiError if there is none but the system's."""
        if not any(message["role"] != "system" for message in self._messages):
            raise bad_field("input", "input holds no message of a user: send at least one")
        system = [{"role": "system", "content": "\n".join(self._system)}] if self._system else []
        return [*system, *self._messages]

    def add(self, item: Item, path: str) -> None:
        """Raises ApiError for content that is not text."""
        match item.type:
            case "message":
                self._add_message(item, path)
            case "reasoning":
                self._add_reasoning(item, path)
            case "function_call":
                self._add_call(item, path)
            case "function_call_output":
                self._add_output(item, path)
            case _:
                raise bad_field(f"{path}.type", f"{path}.type: {_problem(item.type)}")

    def _add_message(self, item: Item, path: str) -> None:
        if item.role not in _ROLES:
            roles = ", ".join(_ROLES)
            raise bad_field(f"{path}.role", f"{path}.role: {item.role!r} is not a role: use one of {roles}")
        text = _text_of(item.content, f"{path}.content")
        role = _ROLES[item.role]
        if role == "system" and not self._messages:
            self._system.append(text)  # many templates accept one system message, at the beginning
        elif role == "assistant":
            self._begin_answer(text)
        else:
            self._add_other({"role": role, "content": text})

    def _add_reasoning(self, item: Item, path: str) -> None:
        thoughts = _text_of(item.content or "", f"{path}.content") or _text_of(
            item.summary or "", f"{path}.summary"
        )
        if thoughts:
            self._thoughts.append(thoughts)

    def _add_call(self, item: Item, path: str) -> None:
        call_id, name = needed(item.call_id, f"{path}.call_id"), needed(item.name, f"{path}.name")
        self._arguments.add(item.arguments)
        self._names[call_id] = name
        last = self._messages[-1] if self._messages else None
        if last is None or last["role"] != "assistant" or self._thoughts:
            last = self._begin_answer("")
        last.setdefault("tool_calls", []).append(template_call(name, item.arguments, call_id))

    def _add_output(self, item: Item, path: str) -> None:
        call_id = needed(item.call_id, f"{path}.call_id")
        text = _text_of(item.output, f"{path}.output")
        message = {"role": "tool", "tool_call_id": call_id, "content": text}
        if call_id in self._names:
            message["name"] = self._names[call_id]
        self._add_other(message)

    def _begin_answer(self, text: str) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if self._thoughts:
            message["reasoning_content"] = "\n".join(self._thoughts)
            self._thoughts = []
        self._messages.append(message)
        return message

    def _add_other(self, message: dict[str, Any]) -> None:
        self._thoughts = []  # of an answer that was not sent
        self._messages.append(message)


def _problem(type: str) -> str:
    if type == "item_reference":
        return "'item_reference' is not supported: this server stores no items; send the item itself"
    return f"{type!r} is not supported: use message, reasoning, function_call or function_call_output"


def _text_of(content: str | list[Part] | None, path: str) -> str:
    if content is None or isinstance(content, str):
        return needed(content, path)
    return "\n".join(_text(part, f"{path}[{index}]") for index, part in enumerate(content))


def _text(part: Part, path: str) -> str:
    name = "refusal" if part.type == "refusal" else "text"
    if part.type not in _TEXT_PARTS and name == "text":
        raise bad_field(f"{path}.type", f"{path}.type: {part.type!r} is not supported: the model reads text only")
    text: str = needed(getattr(part, name), f"{path}.{name}")
    return text
