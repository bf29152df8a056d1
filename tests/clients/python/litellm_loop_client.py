"""LiteLLM: loops of tool calls through its providers for OpenAI's and Anthropic's APIs."""

from typing import Any

import litellm

from clients.python.loops import TOOL, chat_loop
from clients.python.replaying import API_KEY, BASE_URL, MODEL, run

OPENAI: Any = {"model": f"openai/{MODEL}", "api_base": BASE_URL}
ANTHROPIC: Any = {"model": f"anthropic/{MODEL}", "api_base": BASE_URL.removesuffix("/v1")}


def loop(options: Any, *, stream: bool = False) -> None:
    def ask(messages: list[Any]) -> Any:
        answer: Any = litellm.completion(
            messages=messages,
            tools=[TOOL],
            api_key=API_KEY,
            max_retries=0,
            max_tokens=300,
            stream=stream,
            **options,
        )
        return (litellm.stream_chunk_builder(list(answer)) if stream else answer).choices[0]

    chat_loop(ask)


def chat() -> None:
    loop(OPENAI)


def streamed_chat() -> None:
    loop(OPENAI, stream=True)


def messages() -> None:
    loop(ANTHROPIC)


def streamed_messages() -> None:
    loop(ANTHROPIC, stream=True)


run(chat, streamed_chat, messages, streamed_messages)
