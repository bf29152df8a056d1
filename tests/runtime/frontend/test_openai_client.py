"""The synchronous OpenAI client against the real server, in a thread."""

import asyncio

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from runtime.frontend.harness import ANSWER, MODEL, Frontend


async def test_the_synchronous_client_asks_streams_and_lists(frontend: Frontend) -> None:
    def use() -> tuple[str | None, str, list[str], str]:
        with openai.OpenAI(base_url=f"{frontend.url}/v1", api_key="none", max_retries=0) as client:
            messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is a pod?"}]
            whole = client.chat.completions.create(model=MODEL, messages=messages)
            stream = client.chat.completions.create(model=MODEL, messages=messages, stream=True)
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            names = [model.id for model in client.models.list()]
            return whole.choices[0].message.content, streamed, names, client.models.retrieve(MODEL).id

    assert await asyncio.to_thread(use) == (ANSWER, ANSWER, [MODEL, "demo-alias"], MODEL)


async def test_errors_are_the_client_librarys_own_exceptions(frontend: Frontend) -> None:
    async with frontend.openai() as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.models.retrieve("gpt-4")
        with pytest.raises(openai.BadRequestError) as bad:
            await client.completions.create(model=MODEL, prompt="Hi", n=0)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    assert (bad.value.type, bad.value.param) == ("invalid_request_error", "n")
