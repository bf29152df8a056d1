"""Anthropic's library: messages, streams, tools, its tool runner and its structured output."""

from typing import Any

import anthropic

from clients.python.replaying import API_KEY, BASE_URL, MODEL, raised, run
from clients.python.replaying import QUESTION as WORDS
from clients.python.weather import PERSON_TEXT, QUESTION, Person, asked_cities, get_weather

client = anthropic.Anthropic(base_url=BASE_URL.removesuffix("/v1"), api_key=API_KEY, max_retries=0)
TOOL: Any = {
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
GREEDY: Any = {"temperature": 0}
"""The library has no argument for it, and Anthropic's API takes it."""
OPTIONS: Any = {"model": MODEL, "max_tokens": 300, "extra_body": GREEDY}
ASKED: Any = [{"role": "user", "content": QUESTION}]


def create(**options: Any) -> anthropic.types.Message:
    options = {**OPTIONS, "messages": ASKED, **options}
    answer: anthropic.types.Message = client.messages.create(**options)
    return answer


def message() -> None:
    answer = create(messages=[{"role": "user", "content": WORDS}], system="Answer in one sentence.")
    assert answer.content[0].type == "text"
    assert answer.content[0].text
    assert answer.usage.output_tokens > 0


def stream() -> None:
    with client.messages.stream(messages=[{"role": "user", "content": WORDS}], **OPTIONS) as events:
        text = "".join(events.text_stream)
        whole = events.get_final_message()
    assert whole.content[0].type == "text"
    assert text == whole.content[0].text


def call() -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        answer = create(tools=[TOOL], tool_choice=choice)
        assert answer.stop_reason == "tool_use"
        calls = [block for block in answer.content if block.type == "tool_use"]
        assert calls
        assert all(block.name == "get_weather" and block.input.keys() == {"city"} for block in calls)


def streamed_call() -> None:
    """The pieces of the input are those of the whole answer."""
    whole = create(tools=[TOOL], tool_choice={"type": "any"})
    with client.messages.stream(messages=ASKED, tools=[TOOL], tool_choice={"type": "any"}, **OPTIONS) as events:
        kinds = {event.type for event in events}
        streamed = events.get_final_message()
    assert {"input_json", "content_block_start", "content_block_stop", "message_stop"} <= kinds, kinds
    assert streamed.stop_reason == whole.stop_reason == "tool_use"
    assert [block.input for block in streamed.content if block.type == "tool_use"] == [
        block.input for block in whole.content if block.type == "tool_use"
    ]


def conversation() -> None:
    messages = [*ASKED]
    answer = create(tools=[TOOL], tool_choice={"type": "any"})
    messages.append({"role": "assistant", "content": answer.content})
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": get_weather(str(block.input["city"]))}
        for block in answer.content
        if block.type == "tool_use"
    ]
    messages.append({"role": "user", "content": results})
    answer = create(messages=messages, tools=[TOOL])
    assert [block.type for block in answer.content] == ["text"]


def tool_runner() -> None:
    asked_cities.clear()
    options = {**OPTIONS, "messages": ASKED, "tools": [anthropic.beta_tool(get_weather)]}
    answers = list(client.beta.messages.tool_runner(thread=False, **options))
    assert len(asked_cities) == 1
    assert [answer.stop_reason for answer in answers] == ["tool_use", "end_turn"]
    assert [block.type for block in answers[-1].content] == ["text"]


def parse() -> None:
    messages: Any = [{"role": "user", "content": PERSON_TEXT}]
    answer = client.messages.parse(messages=messages, output_format=Person, **OPTIONS)
    assert isinstance(answer.parsed_output, Person)  # the library would remove the bounds of Order


def errors() -> None:
    raised(anthropic.NotFoundError, lambda: create(model="claude"))
    raised(anthropic.BadRequestError, lambda: create(tools=[TOOL], tool_choice={"type": "tool", "name": "other"}))
    stranger = client.with_options(api_key="wrong")
    raised(anthropic.AuthenticationError, lambda: stranger.messages.create(messages=ASKED, **OPTIONS))


async def asynchronous() -> None:
    async with anthropic.AsyncAnthropic(
        base_url=BASE_URL.removesuffix("/v1"), api_key=API_KEY, max_retries=0
    ) as other:
        answer = await other.messages.create(messages=ASKED, tools=[TOOL], tool_choice={"type": "any"}, **OPTIONS)
        assert answer.stop_reason == "tool_use"


run(message, stream, call, streamed_call, conversation, tool_runner, parse, errors, asynchronous)
