"""Find the form in which a chat template accepts contents and calls.

Most templates silently render nonsense from another form. So short conversations are rendered in each form, and the
first that keeps all texts unchanged counts.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Final

Message = Mapping[str, Any]
# None: the template fails
Render = Callable[[Sequence[Message], Any], str | None]

_ONE, _TWO, _NAME, _KEY, _VALUE = "kvasirone", "kvasirtwo", "kvasirname", "kvasirkey", "kvasirvalue"
_PARTS: Final = [{"type": "text", "text": _ONE}, {"type": "text", "text": _TWO}]
# Mistral's templates require 9 characters
_CALL_ID: Final = "kvasir001"
_CALL: Final = {"type": "function", "id": _CALL_ID, "function": {"name": _NAME, "arguments": {_KEY: _VALUE}}}
_CALLED: Final = (_NAME, _KEY, _VALUE)
_TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "",
            "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": ""}}},
        },
    }
]
# stands for the content whose form is unknown
_ASKED: Final = object()
_USER: Final = {"role": "user", "content": "Hello"}
_ASKED_USER: Final = {"role": "user", "content": _ASKED}
_ASSISTANT: Final = {"role": "assistant", "content": _ASKED}
_ANSWER: Final = {"role": "tool", "name": _NAME, "tool_call_id": _CALL_ID, "content": "3"}
# messages after a call
_TURNS: Final[Sequence[Sequence[Message]]] = ([], [_ANSWER, {"role": "assistant", "content": "It is 3."}, _USER])
# a Python dict, JSON within JSON, and parts that were not read
_NOT_AS_IT_IS: Final = re.compile(rf"""'{_KEY}': '{_VALUE}'|\\"{_KEY}|'text': '{_ONE}|"text": ?"{_ONE}""")
_ABSENT: Final[Sequence[Mapping[str, Any]]] = ({"content": None}, {"content": ""}, {})


@dataclass(frozen=True, slots=True)
class ContentForm:
    takes_text: bool = True
    takes_parts: bool = False


PARTS_ONLY: Final = dict.fromkeys(("user", "system", "assistant", "tool"), ContentForm(False, True))


@dataclass(frozen=True, slots=True)
class MessageForms:
    contents: Mapping[str, ContentForm] = field(default_factory=dict)
    # in an assistant's message with calls and no text
    absent_content: Mapping[str, Any] = field(default_factory=lambda: {"content": ""})
    arguments_are_text: bool = False
    """The arguments of a call are JSON text, not an object."""
    splits_calls: bool = False
    """A message with a text shows no calls: they need a separate message."""

    def applied(self, messages: Iterable[Message]) -> list[Message]:
        return [
            {**each, "content": self.content(each.get("role"), each["content"])} if "content" in each else each
            for message in messages
            for each in self.shaped(message)
        ]

    def shaped(self, message: Message) -> list[Message]:
        # one message may become two
        calls = message.get("tool_calls")
        if not calls:
            return [message]
        if self.arguments_are_text:
            message = {**message, "tool_calls": [_with_text(call) for call in calls]}
        called = {**_without_content(message), **self.absent_content}
        if not message.get("content"):
            return [called]
        if not self.splits_calls:
            return [message]
        return [{name: value for name, value in message.items() if name != "tool_calls"}, called]

    def content(self, role: str | None, content: Any) -> Any:
        form = self.contents.get(role or "", ContentForm())
        if isinstance(content, str) and not form.takes_text:
            return [{"type": "text", "text": content}]
        if isinstance(content, list) and not form.takes_parts:
            return "\n".join(part["text"] for part in content)
        return content


def find_forms(render: Render) -> MessageForms:
    found = _Forms(render)
    found.add("user", [_ASKED_USER], [{"role": "system", "content": "Hi"}, _ASKED_USER])
    found.add("system", [{"role": "system", "content": _ASKED}, _USER])
    found.add("assistant", [_USER, _ASSISTANT, _USER], [_USER, _ASSISTANT])
    found.add_calls()
    call = found.forms.shaped({"role": "assistant", "tool_calls": [_CALL]})
    answer = {**_ANSWER, "content": _ASKED}
    found.add("tool", [_USER, *call, answer], [_USER, answer])
    return found.forms


class _Forms:
    def __init__(self, render: Render) -> None:
        self._render = render
        self.forms = MessageForms()

    def add(self, role: str, *conversations: Sequence[Message]) -> None:
        # the first conversation in which a form works decides; otherwise the users' form
        forms = (
            ContentForm(
                takes_text=self._is_shown(messages, [_ONE], _ONE),
                takes_parts=self._is_shown(messages, [_ONE, _TWO], _PARTS),
            )
            for messages in conversations
        )
        form = next((form for form in forms if form.takes_text or form.takes_parts), None)
        known = self.forms.contents
        form = form or known.get("user", ContentForm())
        self.forms = replace(self.forms, contents={**known, role: form})

    def add_calls(self) -> None:
        # A form for the last turn and an earlier one is better than one for the last turn only.
        for turns, content, as_text in product((_TURNS, _TURNS[:1]), _ABSENT, (False, True)):
            forms = replace(self.forms, absent_content=content, arguments_are_text=as_text)
            if self._shows_calls(forms, turns):
                split = replace(forms, splits_calls=True)
                hides = not self._shows_calls(forms, turns, _ONE) and self._shows_calls(split, turns, _ONE)
                self.forms = split if hides else forms
                return

    def _shows_calls(self, forms: MessageForms, turns: Sequence[Sequence[Message]], *text: str) -> bool:
        message = {"role": "assistant", "content": "".join(text), "tool_calls": [_CALL]}
        return all(self._is_shown([_USER, *forms.shaped(message), *turn], (*_CALLED, *text)) for turn in turns)

    def _is_shown(self, messages: Sequence[Message], texts: Sequence[str], asked: Any = None) -> bool:
        filled = [
            {**message, "content": asked if content is _ASKED else self.forms.content(message["role"], content)}
            if (content := message.get("content")) is not None
            else message
            for message in messages
        ]
        prompt = self._prompt(filled)
        if prompt is None or not all(text in prompt for text in texts) or _NOT_AS_IT_IS.search(prompt):
            return False
        if "None" not in prompt:
            return True
        own = self._prompt([message for message in filled if message.get("content")]) or ""
        return prompt.count("None") <= own.count("None")

    def _prompt(self, messages: Sequence[Message]) -> str | None:
        # Some templates show calls only with tools, and others fail with tools.
        prompt = self._render(messages, _TOOLS)
        return self._render(messages, None) if prompt is None else prompt


def _with_text(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**call["function"], "arguments": text}}


def _without_content(message: Message) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "content"}
