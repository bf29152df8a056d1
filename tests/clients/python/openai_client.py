"""openai-python: the official library, synchronous and asynchronous."""

from collections.abc import Callable
from typing import Any

import openai
from openai.types.chat import ChatCompletionMessageParam

from clients.python.replaying import API_KEY, BASE_URL, LONG, MODEL, QUESTION, raised, run

client = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
ASKED: list[ChatCompletionMessageParam] = [
    {"role": "developer", "content": "Answer in one sentence."},
    {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
]
TOOL_HISTORY: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "How many pods run?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "pods", "arguments": '{"namespace": "web"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "3"},
]


def create(**options: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": ASKED, "max_tokens": 5, **options})


def refused(kind: type[openai.APIStatusError], ask: Callable[[], object], **expected: object) -> None:
    error = raised(kind, ask)
    found = {name: getattr(error, name) for name in expected}
    assert found == expected, f"{found}: {error}"
    assert error.request_id


def chat() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ASKED, max_completion_tokens=40, temperature=0)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def completion() -> None:
    answer = client.completions.create(model=MODEL, prompt="A pod is", max_tokens=10, n=2, best_of=3, logprobs=1)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].logprobs is not None
    chunks = client.completions.create(model=MODEL, prompt=["A pod is", "A node is"], max_tokens=5, stream=True)
    assert {chunk.choices[0].index for chunk in chunks} == {0, 1}


def stream() -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=ASKED, max_tokens=40, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage is not None


def stream_helper() -> None:
    with client.chat.completions.stream(model=MODEL, messages=ASKED, temperature=0) as events:
        kinds = {event.type for event in events}
        whole = events.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert whole.choices[0].message.content


def stream_that_is_left() -> None:
    with create(max_tokens=None, stream=True) as chunks:
        next(iter(chunks))


def second_turn() -> None:
    """The answer goes back as the library returned it."""
    messages: list[Any] = [*ASKED]
    for question in ("And a node?", "And a service?"):
        answer = create(messages=messages)
        messages += [answer.choices[0].message, {"role": "user", "content": question}]
    assert len(messages) == 6
    # Some frameworks send all fields, the empty ones too.
    dumped = answer.choices[0].message.model_dump()
    messages = [*ASKED, dumped, {"role": "user", "content": "Why?"}]
    assert create(messages=messages).choices


def fields_that_change_nothing() -> None:
    answer = create(
        metadata={"team": "web"},
        store=False,
        service_tier="auto",
        reasoning_effort="low",
        verbosity="low",
        user="me",
        safety_identifier="me",
        prompt_cache_key="me",
        parallel_tool_calls=True,
        response_format={"type": "text"},
        modalities=["text"],
        extra_body={"a_field_of_tomorrow": 1},
    )
    assert answer.choices


def stored() -> None:
    """The flag of OpenAI's dashboard, which many examples set."""
    assert create(store=True).choices


def fields_of_vllm() -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=ASKED,
        extra_body={
            "max_tokens": 5.0,
            "top_k": 20,
            "min_p": 0.01,
            "repetition_penalty": 1.1,
            "chat_template_kwargs": {"enable_thinking": False},
            "add_generation_prompt": True,
            "return_token_ids": True,
        },
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 5
    assert answer.model_extra is not None
    assert answer.model_extra.keys() >= {"kv_transfer_params", "prompt_token_ids"}
    assert answer.system_fingerprint
    assert "stop_reason" in (answer.choices[0].model_extra or {})


def history_of_tools() -> None:
    assert create(messages=TOOL_HISTORY).choices[0].message.content


def history_of_other_servers() -> None:
    """Fields that other servers and libraries add to messages."""
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": QUESTION, "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": "A group of containers.",
            "reasoning_content": "The user asks for a pod.",
            "refusal": None,
            "annotations": [{"type": "url_citation", "url_citation": {"url": "https://example.org"}}],
            "tool_calls": None,
            "function_call": None,
            "audio": None,
            "provider_specific_fields": {"x": 1},
        },
        {"role": "user", "content": "Why?", "cache_control": {"type": "ephemeral"}},
    ]
    assert create(messages=messages).choices


def raw_answers() -> None:
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=ASKED, max_tokens=5)
    assert raw.headers["x-request-id"] == raw.request_id
    assert raw.parse().choices[0].message.role == "assistant"
    with client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=ASKED, max_tokens=5
    ) as response:
        assert "chat.completion" in "".join(response.iter_text())


def logprobs() -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=ASKED, max_tokens=3, logprobs=True, top_logprobs=2, n=2, seed=1, stop=["###"]
    )
    assert len(answer.choices) == 2
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert len(found.content[0].top_logprobs) == 2


def models() -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def errors() -> None:
    long: list[ChatCompletionMessageParam] = [{"role": "user", "content": LONG}]
    too_long = "context_length_exceeded"
    bad = openai.BadRequestError
    refused(openai.NotFoundError, lambda: create(model="gpt-4o"), code="model_not_found", param="model")
    refused(bad, lambda: create(temperature=2.1), type="invalid_request_error", param="temperature")
    refused(bad, lambda: create(messages=long), code=too_long, param="messages")
    refused(bad, lambda: create(max_tokens=10_000, stream=True), code=too_long, param="max_tokens")
    stranger = client.with_options(api_key="wrong")
    refused(openai.AuthenticationError, stranger.models.list, code="invalid_api_key")
    refused(openai.NotFoundError, lambda: client.images.generate(prompt="A pod"), code="unknown_url")


async def asynchronous() -> None:
    async with openai.AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0) as other:
        answer = await other.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=20)
        assert answer.choices[0].message.content
        chunks = await other.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=20, stream=True)
        assert [chunk async for chunk in chunks]
        async with other.chat.completions.stream(model=MODEL, messages=ASKED, temperature=0) as events:
            assert (await events.get_final_completion()).choices


run(
    chat,
    completion,
    stream,
    stream_helper,
    stream_that_is_left,
    second_turn,
    fields_that_change_nothing,
    stored,
    fields_of_vllm,
    history_of_tools,
    history_of_other_servers,
    raw_answers,
    logprobs,
    models,
    errors,
    asynchronous,
)
