"""LlamaIndex: the OpenAILike model, for chats and for completions."""

from typing import Any

import openai
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.llms.openai_like import OpenAILike

from clients.python.replaying import API_KEY, BASE_URL, CONTEXT, LONG, MODEL, QUESTION, raised, run

ASKED = [ChatMessage(role=MessageRole.SYSTEM, content="Answer in one sentence."), ChatMessage(QUESTION)]


def model(**options: Any) -> OpenAILike:
    options = {"is_chat_model": True, "max_tokens": 30, "max_retries": 0, **options}
    return OpenAILike(model=MODEL, api_base=BASE_URL, api_key=API_KEY, context_window=CONTEXT, **options)


def chat() -> None:
    assert model().chat(ASKED).message.content


def stream() -> None:
    chunks = list(model().stream_chat(ASKED))
    assert chunks[-1].message.content == "".join(chunk.delta or "" for chunk in chunks)
    assert chunks[-1].message.content


def second_turn() -> None:
    history = [*ASKED]
    for question in ("And a node?", "And a service?"):
        history += [model().chat(history).message, ChatMessage(question)]
    assert len(history) == 6


def complete() -> None:
    assert model().complete(QUESTION).text
    assert list(model().stream_complete(QUESTION))[-1].text
    plain = model(is_chat_model=False)
    assert plain.complete("A pod is").text
    assert list(plain.stream_complete("A pod is"))[-1].text


def logprobs() -> None:
    assert model(logprobs=True, top_logprobs=2).chat(ASKED).logprobs


def overflow() -> None:
    error = raised(openai.BadRequestError, lambda: model().chat([ChatMessage(LONG)]))
    assert error.code == "context_length_exceeded"


async def asynchronous() -> None:
    assert (await model().achat(ASKED)).message.content
    assert [chunk async for chunk in await model().astream_chat(ASKED)]


run(chat, stream, second_turn, complete, logprobs, overflow, asynchronous)
