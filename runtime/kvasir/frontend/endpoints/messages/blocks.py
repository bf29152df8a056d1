"""The blocks of messages, and the chat template's messages for them."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import Field

from kvasir.frontend.endpoints.past_calls import ArgumentCount, template_call
from kvasir.frontend.errors import bad_field, needed
from kvasir.frontend.request_bodies.request_body import BodyPart, at_most

MAX_BLOCKS: Final = 8192
"""Limit for one message, or one result of a tool."""

_ROLES: Final = ("user", "assistant", "system")
_OWNERS: Final = {
    "tool_use": "assistant",
    "tool_result": "user",
    "thinking": "assistant",
    "redacted_thinking": "assistant",
}
"""Type of a block → its only role."""
# of a result with `is_error`, for which chat templates have no field
_ERROR: Final = "Error: "


class ResultBlock(BodyPart):
    type: str
    text: str | None = None


class Block(BodyPart):
    """A block of a message's content. `cache_control` and citations are ignored: the prefix cache is automatic."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    """Field of a tool_use, as the next two."""
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    """Field of a tool_result, as the next two."""
    content: Annotated[str | Annotated[list[ResultBlock], Field(fail_fast=True)] | None, at_most(MAX_BLOCKS)] = None
    is_error: bool = False


Content = Annotated[str | Annotated[list[Block], Field(fail_fast=True)], at_most(MAX_BLOCKS)]


class Turn(BodyPart):
    role: str
    content: Content


class MessagesHistory:
    # By the API, neighbours of one role are one message. Templates expect one message per result.
    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._names: dict[str, str] = {}
        """Id of a tool_use → name of the tool."""
        self._arguments = ArgumentCount("messages")

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [{"content": "", **message, **_joined_texts(message)} for message in self._messages]

    def add_system(self, content: str | list[Block]) -> None:
        if text := content if isinstance(content, str) else _joined(content, "system"):
            self._text("system", text)

    def add(self, turn: Turn, path: str) -> None:
        """Raises ApiError for content that is not text."""
        if turn.role not in _ROLES:
            names = ", ".join(_ROLES)
            raise bad_field(f"{path}.role", f"{path}.role: {turn.role!r} is not a role: use one of {names}")
        if isinstance(turn.content, str):
            self._text(turn.role, turn.content)
            return
        if not turn.content:
            self._text(turn.role, "")
        for index, block in enumerate(turn.content):
            self._add_block(turn.role, block, f"{path}.content[{index}]")

    def _add_block(self, role: str, block: Block, path: str) -> None:
        if (owner := _OWNERS.get(block.type, role)) != role:
            raise bad_field(f"{path}.type", f"{path}.type: {block.type!r} belongs to a message of the {owner}")
        match block.type:
            case "text":
                self._text(role, needed(block.text, f"{path}.text"))
            case "thinking":
                if thoughts := needed(block.thinking, f"{path}.thinking"):
                    _append(self._of(role), "reasoning_content", thoughts)
            case "redacted_thinking":  # of another server, and unreadable for a model
                self._of(role)
            case "tool_use":
                self._add_call(block, path)
            case "tool_result":
                self._add_result(block, path)
            case _:
                what = f"{path}.type: {block.type!r} is not supported: the model reads text, and results of tools"
                raise bad_field(f"{path}.type", what)

    def _add_call(self, block: Block, path: str) -> None:
        call_id, name = needed(block.id, f"{path}.id"), needed(block.name, f"{path}.name")
        arguments = needed(block.input, f"{path}.input")
        self._arguments.add(arguments)
        self._names[call_id] = name
        self._of("assistant").setdefault("tool_calls", []).append(template_call(name, arguments, call_id))

    def _add_result(self, block: Block, path: str) -> None:
        call_id = needed(block.tool_use_id, f"{path}.tool_use_id")
        content = block.content or ""
        text = content if isinstance(content, str) else _joined(content, f"{path}.content")
        message = {"role": "tool", "tool_call_id": call_id, "content": [_ERROR + text if block.is_error else text]}
        if call_id in self._names:
            message["name"] = self._names[call_id]
        self._messages.append(message)

    def _text(self, role: str, text: str) -> None:
        _append(self._of(role), "content", text)

    def _of(self, role: str) -> dict[str, Any]:
        """Return the last message, or a new one for another role."""
        if not self._messages or self._messages[-1]["role"] != role:
            self._messages.append({"role": role})
        return self._messages[-1]


def _append(message: dict[str, Any], name: str, text: str) -> None:
    # a list until all texts are there, because there may be very many
    message.setdefault(name, []).append(text)


def _joined_texts(message: dict[str, Any]) -> dict[str, str]:
    return {name: "\n".join(message[name]) for name in ("content", "reasoning_content") if name in message}


def _joined(blocks: Sequence[ResultBlock | Block], path: str) -> str:
    """Return the text of blocks. Raises ApiError."""
    texts = []
    for index, block in enumerate(blocks):
        where = f"{path}[{index}]"
        if block.type != "text":
            raise bad_field(
                f"{where}.type", f"{where}.type: {block.type!r} is not supported: the model reads text only"
            )
        texts.append(needed(block.text, f"{where}.text"))
    return "\n".join(texts)
