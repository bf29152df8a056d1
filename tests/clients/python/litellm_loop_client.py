"""LiteLLM: loops of tool calls through its providers for OpenAI's and Anthropic's APIs."""

import json
from typing import Any

import litellm

from clients.python.loops import DESCRIPTION, QUESTION, REASONS, SCHEMA, check, get_weather
from clients.python.replaying import API_KEY, BASE_URL, MODEL, run

FUNCTION: Any = {"name": "get_weather", "description": DESCRIPTION, "parameters": SCHEMA}
OPENAI: Any = {"model": f"openai/{MODEL}", "api_base": BASE_URL}
ANTHROPIC: Any = {"model": f"anthropic/{MODEL}", "api_base": BASE_URL.removesuffix("/v1")}


def loop(options: Any, *, stream: bool = False) -> None:
    messages: Any = [{"role": "user", "content": QUESTION}]
    tools = [{"type": "function", "function": FUNCTION}]
    reasons = []
    while True:
        answer: Any = litellm.completion(
            messages=messages, tools=tools, api_key=API_KEY, max_retries=0, max_tokens=300, stream=stream, **options
        )
        choice = (litellm.stream_chunk_builder(list(answer)) if stream else answer).choices[0]
        reasons.append(choice.finish_reason)
        if not choice.message.tool_calls:
            break
        messages.append(choice.message.model_dump(exclude_none=True))
        for call in choice.message.tool_calls:
            result = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    check(choice.message.content)
    assert reasons == REASONS, reasons


def chat() -> None:
    loop(OPENAI)


def streamed_chat() -> None:
    loop(OPENAI, stream=True)


def messages() -> None:
    loop(ANTHROPIC)


def streamed_messages() -> None:
    loop(ANTHROPIC, stream=True)


run(chat, streamed_chat, messages, streamed_messages)
