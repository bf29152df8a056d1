"""A frontend whose chat template has tools and reasoning, for the tests of chats that use them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from kvasir.config.chat_settings import ChatConfig
from runtime.frontend.harness import Frontend, demo_model, running_frontend
from runtime.frontend.scripted import TIMEOUT
from runtime.frontend.test_streaming import CHAT, events_of
from runtime.link_messages import prompt_of

TEMPLATE = (
    "{% if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}"
    "{% for m in messages %}<|{{ m.role if m.role != 'tool' else 'user' }}|>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
QUESTION: list[Any] = [{"role": "user", "content": "How many pods run?"}]
PODS = {
    "type": "function",
    "function": {
        "name": "pods",
        "description": "Counts pods.",
        "parameters": {
            "type": "object",
            "properties": {"namespace": {"type": "string"}},
            "required": ["namespace"],
            "additionalProperties": False,
        },
    },
}
NODES: dict[str, Any] = {"type": "function", "function": {"name": "nodes"}}
TOOLS: list[Any] = [PODS, NODES]
CALL = '<tool_call>\n{"name": "pods", "arguments": {"namespace": "web"}}\n</tool_call>'
SECOND_CALL = '<tool_call>\n{"name": "nodes", "arguments": {}}\n</tool_call>'
ARGUMENTS = '{"namespace": "web"}'


@asynccontextmanager
async def talking_frontend(text: str = CALL, **chat: Any) -> AsyncIterator[Frontend]:
    """A frontend with hermes's tool calls and qwen3's reasoning, and an engine that answers with this text."""
    settings = {"chat_template": TEMPLATE, "tool_call_parser": "hermes", "reasoning_parser": "qwen3", **chat}
    async with running_frontend(chat=ChatConfig(**settings)) as frontend:
        says(frontend, text)
        yield frontend


def tokens_of(text: str) -> list[int]:
    return demo_model()[1].encode(text, add_special_tokens=False)


def says(frontend: Frontend, text: str) -> None:
    frontend.engine.script.answer = tokens_of(text)


def prompt_text(frontend: Frontend) -> str:
    tokens = prompt_of(frontend.engine.seen.requests[-1])
    return demo_model()[1].decode(tokens, skip_special_tokens=False)


async def answer_of(frontend: Frontend, **body: Any) -> dict[str, Any]:
    async with frontend.http() as client:
        response = await client.post(CHAT, json={"messages": QUESTION, **body})
    assert response.status_code == 200, response.text
    return dict(response.json())


async def error_of(frontend: Frontend, **body: Any) -> tuple[str | None, str]:
    """Return the field and the message of a refusal."""
    async with frontend.http() as client:
        response = await client.post(CHAT, json={"messages": QUESTION, **body})
    assert response.status_code == 400, response.text
    return response.json()["error"]["param"], response.json()["error"]["message"]


async def deltas_of(frontend: Frontend, **body: Any) -> list[dict[str, Any]]:
    events = await events_of(frontend, CHAT, **{"messages": QUESTION, **body})
    return [choice["delta"] for event in events for choice in event["choices"]]


async def deltas_in_two_parts(
    frontend: Frontend, parts: tuple[str, str], known: Callable[[list[dict[str, Any]]], bool], **body: Any
) -> list[dict[str, Any]]:
    """`deltas_of`, where the engine sends the second part once the deltas that the client has are `known`."""
    first, second = map(tokens_of, parts)
    frontend.engine.script.answer, frontend.engine.script.pause_at = first + second, len(first)
    deltas: list[dict[str, Any]] = []
    async with (
        asyncio.timeout(TIMEOUT),
        frontend.http() as client,
        client.stream("POST", CHAT, json={"messages": QUESTION, "stream": True, **body}) as response,
    ):
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                deltas += [choice["delta"] for choice in json.loads(line.removeprefix("data: "))["choices"]]
                if known(deltas):
                    frontend.engine.resume()
    return deltas


def arguments_of(deltas: list[dict[str, Any]], index: int = 0) -> str:
    """Return the arguments of a call, as far as they are in the deltas."""
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    return "".join(call["function"]["arguments"] for call in calls if call["index"] == index)
