"""openai-python: structured output and tools, of chats and of responses."""

import json
from typing import Any

import openai
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel

from clients.python.replaying import API_KEY, BASE_URL, MODEL, raised, run
from clients.python.weather import PERSON_TEXT, QUESTION, Order, Person, get_weather

client = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
WEATHER: list[ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]
PERSON: list[ChatCompletionMessageParam] = [{"role": "user", "content": PERSON_TEXT}]


class GetWeather(BaseModel):
    """Get the weather in a city."""

    city: str


TOOL = openai.pydantic_function_tool(GetWeather, name="get_weather")
RESPONSES_TOOL: Any = {"type": "function", **TOOL["function"]}
OPTIONS: Any = {"model": MODEL, "temperature": 0, "max_tokens": 300}


def parse() -> None:
    answer = client.chat.completions.parse(messages=PERSON, response_format=Person, **OPTIONS)
    assert isinstance(answer.choices[0].message.parsed, Person)
    assert answer.choices[0].finish_reason == "stop"


def parse_another_schema() -> None:
    """At a temperature that makes most outputs of this model nonsense."""
    options = {**OPTIONS, "temperature": 1.5}
    for seed in range(5):
        answer = client.chat.completions.parse(messages=PERSON, response_format=Order, seed=seed, **options)
        assert isinstance(answer.choices[0].message.parsed, Order)


def parse_stream() -> None:
    with client.chat.completions.stream(messages=PERSON, response_format=Person, **OPTIONS) as stream:
        events = list(stream)
    done = [event for event in events if event.type == "content.done"]
    assert [type(event.parsed) for event in done] == [Person]
    assert any(event.type == "content.delta" for event in events)


def json_object() -> None:
    """The output may be cut by its length: it is then the beginning of an object."""
    answer = client.chat.completions.create(messages=PERSON, response_format={"type": "json_object"}, **OPTIONS)
    text = answer.choices[0].message.content or ""
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)
    else:
        assert text.lstrip().startswith("{")


def fields_of_vllm() -> None:
    choices: list[dict[str, object]] = [
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"guided_choice": ["yes", "no"]},
    ]
    for body in choices:
        answer = client.chat.completions.create(messages=PERSON, extra_body=body, **OPTIONS)
        assert answer.choices[0].message.content in ("yes", "no")
    body = {"structured_outputs": {"regex": "[a-z]{3}-[0-9]{2}"}}
    text = client.chat.completions.create(messages=PERSON, extra_body=body, **OPTIONS).choices[0].message.content
    assert text is not None
    assert (len(text), text[3]) == (6, "-")


def call() -> None:
    answer = client.chat.completions.create(messages=WEATHER, tools=[TOOL], tool_choice="required", **OPTIONS)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls
    for each in choice.message.tool_calls:
        assert each.type == "function"
        assert each.function.name == "get_weather"
        GetWeather.model_validate_json(each.function.arguments)


def parsed_call() -> None:
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    answer = client.chat.completions.parse(messages=WEATHER, tools=[TOOL], tool_choice=named, **OPTIONS)
    assert answer.choices[0].message.tool_calls
    assert isinstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, GetWeather)


def streamed_call() -> None:
    """The pieces of the arguments, put together, are the arguments of the whole answer."""
    whole = client.chat.completions.create(messages=WEATHER, tools=[TOOL], tool_choice="required", **OPTIONS)
    arguments: dict[int, str] = {}
    named, reasons = [], []
    chunks = client.chat.completions.create(
        messages=WEATHER, tools=[TOOL], tool_choice="required", stream=True, **OPTIONS
    )
    for chunk in chunks:
        for choice in chunk.choices:
            reasons += [choice.finish_reason] if choice.finish_reason else []
            for piece in choice.delta.tool_calls or ():
                assert piece.function is not None
                if piece.id:
                    named.append(piece.function.name)
                arguments[piece.index] = arguments.get(piece.index, "") + (piece.function.arguments or "")
    calls = whole.choices[0].message.tool_calls or []
    expected = [each.function for each in calls if each.type == "function"]
    assert [arguments[index] for index in sorted(arguments)] == [each.arguments for each in expected]
    assert named == [each.name for each in expected]
    assert reasons == ["tool_calls"]


def stream_helper() -> None:
    with client.chat.completions.stream(
        messages=WEATHER, tools=[TOOL], tool_choice="required", **OPTIONS
    ) as stream:
        events = list(stream)
        whole = stream.get_final_completion()
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert done
    assert all(isinstance(event.parsed_arguments, GetWeather) for event in done)
    assert any(event.type == "tool_calls.function.arguments.delta" for event in events)
    assert whole.choices[0].message.tool_calls


def conversation() -> None:
    """The model chooses to call; the function's result goes back; the model answers."""
    messages = [*WEATHER]
    answer = client.chat.completions.create(messages=messages, tools=[TOOL], **OPTIONS)
    message = answer.choices[0].message
    assert message.tool_calls
    messages.append(message)
    for each in message.tool_calls:
        assert each.type == "function"
        result = get_weather(**json.loads(each.function.arguments))
        messages.append({"role": "tool", "tool_call_id": each.id, "content": result})
    answer = client.chat.completions.create(messages=messages, tools=[TOOL], **OPTIONS)
    assert answer.choices[0].message.content
    assert not answer.choices[0].message.tool_calls


def no_call() -> None:
    answer = client.chat.completions.create(messages=WEATHER, tools=[TOOL], tool_choice="none", **OPTIONS)
    assert not answer.choices[0].message.tool_calls


def responses_parse() -> None:
    answer = client.responses.parse(
        model=MODEL, input=PERSON_TEXT, text_format=Person, temperature=0, max_output_tokens=300
    )
    assert isinstance(answer.output_parsed, Person)


def responses_conversation() -> None:
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    options: Any = {"model": MODEL, "tools": [RESPONSES_TOOL], "temperature": 0, "max_output_tokens": 300}
    answer = client.responses.create(input=items, tool_choice="required", **options)
    calls = [item for item in answer.output if item.type == "function_call"]
    assert calls
    items += answer.output
    for each in calls:
        result = get_weather(**json.loads(each.arguments))
        items.append({"type": "function_call_output", "call_id": each.call_id, "output": result})
    assert client.responses.create(input=items, **options).output_text


def responses_stream() -> None:
    with client.responses.stream(
        model=MODEL,
        input=QUESTION,
        tools=[RESPONSES_TOOL],
        tool_choice="required",
        temperature=0,
        max_output_tokens=300,
    ) as stream:
        events = list(stream)
        whole = stream.get_final_response()
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    calls = [item for item in whole.output if item.type == "function_call"]
    assert "".join(pieces) == "".join(each.arguments for each in calls)
    assert all(GetWeather.model_validate_json(each.arguments) for each in calls)
    assert calls


def errors() -> None:
    schema: dict[str, object] = {"type": "array", "items": {"type": "null"}, "minItems": 1_000_000_000}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "bomb", "schema": schema}}
    create = client.chat.completions.create
    error = raised(openai.BadRequestError, lambda: create(messages=PERSON, response_format=wanted, **OPTIONS))
    assert "minItems" in error.message, error.message


async def asynchronous() -> None:
    async with openai.AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0) as other:
        answer = await other.chat.completions.parse(messages=PERSON, response_format=Person, **OPTIONS)
        assert isinstance(answer.choices[0].message.parsed, Person)


run(
    parse,
    parse_another_schema,
    parse_stream,
    json_object,
    fields_of_vllm,
    call,
    parsed_call,
    streamed_call,
    stream_helper,
    conversation,
    no_call,
    responses_parse,
    responses_conversation,
    responses_stream,
    errors,
    asynchronous,
)
