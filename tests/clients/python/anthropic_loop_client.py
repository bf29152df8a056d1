"""Anthropic's library: loops of tool calls, by hand and by its tool runner."""

from typing import Any

import anthropic

from clients.python.loops import DESCRIPTION, QUESTION, SCHEMA, check, get_weather
from clients.python.replaying import API_KEY, BASE_URL, MODEL, run

client = anthropic.Anthropic(base_url=BASE_URL.removesuffix("/v1"), api_key=API_KEY, max_retries=0)
TOOLS: Any = [{"name": "get_weather", "description": DESCRIPTION, "input_schema": SCHEMA}]
REASONS = ["tool_use", "tool_use", "tool_use", "end_turn"]
OPTIONS: Any = {"model": MODEL, "max_tokens": 300}


def whole_message(messages: Any) -> Any:
    return client.messages.create(messages=messages, tools=TOOLS, **OPTIONS)


def streamed_message(messages: Any) -> Any:
    with client.messages.stream(messages=messages, tools=TOOLS, **OPTIONS) as stream:
        return stream.get_final_message()


def loop(ask: Any) -> None:
    messages: Any = [{"role": "user", "content": QUESTION}]
    reasons = []
    while True:
        answer = ask(messages)
        reasons.append(answer.stop_reason)
        calls = [block for block in answer.content if block.type == "tool_use"]
        if not calls:
            break
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": get_weather(**call.input)} for call in calls
        ]
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    check(answer.content[-1].text)
    assert reasons == REASONS, reasons


def messages() -> None:
    loop(whole_message)


def streamed_messages() -> None:
    loop(streamed_message)


def tool_runner() -> None:
    options = {**OPTIONS, "messages": [{"role": "user", "content": QUESTION}]}
    runner = client.beta.messages.tool_runner(tools=[anthropic.beta_tool(get_weather)], thread=False, **options)
    answers: Any = list(runner)
    check(answers[-1].content[-1].text)
    assert [answer.stop_reason for answer in answers] == REASONS


run(messages, streamed_messages, tool_runner)
