"""litellm: its providers for OpenAI-compatible servers and for vLLM."""

from functools import partial
from typing import Any

import litellm

from clients.python.replaying import API_KEY, BASE_URL, LONG, MODEL, QUESTION, raised, run

ASKED = [{"role": "system", "content": "Answer in one sentence."}, {"role": "user", "content": QUESTION}]
PROVIDERS = ("openai", "hosted_vllm")


def ask(provider: str, messages: list[Any], **options: Any) -> Any:
    options = {"api_key": API_KEY, "max_tokens": 30, "max_retries": 0, **options}
    return litellm.completion(model=f"{provider}/{MODEL}", api_base=BASE_URL, messages=messages, **options)


def completion() -> None:
    for provider in PROVIDERS:
        answer = ask(provider, ASKED, temperature=0.5, user="me", metadata={"team": "web"})
        assert answer.choices[0].message.content
        assert answer.usage.total_tokens > 0


def stream() -> None:
    for provider in PROVIDERS:
        chunks = list(ask(provider, ASKED, stream=True, stream_options={"include_usage": True}))
        whole = litellm.stream_chunk_builder(chunks, messages=ASKED)
        assert whole.choices[0].message.content
        assert whole.usage.completion_tokens > 0


def second_turn() -> None:
    """The answer goes back as litellm returned it, and as a dict with all of its fields."""
    for provider in PROVIDERS:
        message = ask(provider, ASKED).choices[0].message
        for sent in (message, message.model_dump()):
            answer = ask(provider, [*ASKED, sent, {"role": "user", "content": "Why?"}])
            assert answer.choices[0].message.content


def history_of_tools() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "pods", "arguments": "{}"}}
    history = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "name": "pods", "content": "3"},
    ]
    for provider in PROVIDERS:
        assert ask(provider, history).choices[0].message.content


def text_completion() -> None:
    answer = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}",
        api_base=BASE_URL,
        api_key=API_KEY,
        prompt="A pod is",
        max_tokens=10,
    )
    assert answer.choices[0].text


def overflow() -> None:
    for provider in PROVIDERS:
        long = partial(ask, provider, [{"role": "user", "content": LONG}])
        raised(litellm.ContextWindowExceededError, long)
        raised(litellm.ContextWindowExceededError, partial(ask, provider, ASKED, max_tokens=10_000))


def errors() -> None:
    for provider in PROVIDERS:
        raised(litellm.BadRequestError, partial(ask, provider, ASKED, temperature=2.1))
        raised(litellm.AuthenticationError, partial(ask, provider, ASKED, api_key="wrong"))


async def asynchronous() -> None:
    for provider in PROVIDERS:
        chunks = await litellm.acompletion(
            model=f"{provider}/{MODEL}",
            api_base=BASE_URL,
            api_key=API_KEY,
            messages=ASKED,
            stream=True,
            max_tokens=20,
        )
        assert [chunk async for chunk in chunks]


run(completion, stream, second_turn, history_of_tools, text_completion, overflow, errors, asynchronous)
