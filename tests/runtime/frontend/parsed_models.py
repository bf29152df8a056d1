"""A model whose output is parsed. Its chat template shows all that it gets; a script has reasoning and calls."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, get_args

from pydantic import BaseModel

from kvasir.config.chat_settings import ChatConfig
from kvasir.frontend.parsers.streaming.emitter import MAX_HELD_CHARACTERS
from kvasir.request.constraint import Grammar
from runtime.frontend.harness import Frontend, demo_model, running_frontend, script_for
from runtime.frontend.scripted import Script
from runtime.link_messages import prompt_of

TEMPLATE = (
    "{% if tools %}{{ tools | tojson ~ '\n' }}{% endif %}"
    "{% if reasoning_effort is defined %}effort {{ reasoning_effort ~ '\n' }}{% endif %}"
    "{% if enable_thinking is defined %}thinking {{ enable_thinking ~ '\n' }}{% endif %}"
    "{% for message in messages %}<{{ message.role }}{{ ' ' + message.name if message.name else '' }}>"
    "{% if message.reasoning_content %}({{ message.reasoning_content }}){% endif %}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}[{{ call.id }} {{ call.function.name }} "
    "{{ call.function.arguments | tojson }}]{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
UNKNOWN_FORMATS = {"tool_call_parser": "auto", "reasoning_parser": "auto"}
"""The template has no marks of a format."""
SCHEMA: dict[str, object] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
THOUGHTS = "The user asks about two cities."
TEXT = "I look it up."
LONG = json.dumps({"city": "Oslo " * (MAX_HELD_CHARACTERS // 5) + "and Rome, Bergen, Paris and Athens"})
"""Arguments that are sent while they arrive."""
OSLO, ROME = '{"city": "Oslo"}', '{"city": "Rome"}'


def call(arguments: str, name: str = "weather") -> str:
    """A call as the model writes it, in Hermes's format."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def thoughts(text: str = THOUGHTS) -> str:
    return f"<think>{text}</think>"


EVERYTHING = f"{thoughts()}{TEXT}\n{call(OSLO)}\n{call(ROME)}"
"""Reasoning, text and two calls."""


def paced(text: str) -> Script:
    """A script whose tokens come one by one: each is a delta of its own."""
    return replace(script_for(text), pace=0.002)


@asynccontextmanager
async def running_model(**chat: Any) -> AsyncIterator[Frontend]:
    config = ChatConfig(
        **{"chat_template": TEMPLATE, "tool_call_parser": "hermes", "reasoning_parser": "qwen3", **chat}
    )
    async with running_frontend(chat=config) as frontend:
        yield frontend


def rendered(frontend: Frontend) -> str:
    _, tokenizer = demo_model()
    return tokenizer.decode(prompt_of(frontend.engine.seen.requests[-1]), skip_special_tokens=False)


def grammar_of(frontend: Frontend) -> Grammar:
    constraint = frontend.engine.seen.requests[-1].constraint
    assert constraint is not None
    assert constraint.grammar is not None
    return constraint.grammar


def offered(frontend: Frontend) -> list[Any]:
    """The functions that the chat template got for the last prompt."""
    return [tool["function"] for tool in json.loads(rendered(frontend).partition("\n")[0])]


def token_count(text: str) -> int:
    _, tokenizer = demo_model()
    return len(tokenizer.encode(text, add_special_tokens=False))


def check_types(events: list[Any], union: Any) -> None:
    """Each event is valid for the class of the client's union that has its type."""
    classes: dict[str, type[BaseModel]] = {}
    for each in get_args(get_args(union)[0]):
        classes[get_args(each.model_fields["type"].annotation)[0]] = each
    for event in events:
        classes[event["type"]].model_validate(event)
