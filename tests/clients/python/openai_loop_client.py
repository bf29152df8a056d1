"""openai-python: loops of tool calls, of chats and of responses."""

import json
from typing import Any

import openai

from clients.python.loops import QUESTION, TOOL, chat_loop, check, get_weather
from clients.python.replaying import API_KEY, BASE_URL, MODEL, run

client = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
TOOLS: Any = [{"type": "function", **TOOL["function"]}]


def whole_choice(messages: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL]).choices[0]


def streamed_choice(messages: Any) -> Any:
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=[TOOL]) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion().choices[0]


def chat() -> None:
    chat_loop(whole_choice)


def streamed_chat() -> None:
    chat_loop(streamed_choice)


def whole_response(items: Any) -> Any:
    return client.responses.create(model=MODEL, input=items, tools=TOOLS)


def streamed_response(items: Any) -> Any:
    with client.responses.stream(model=MODEL, input=items, tools=TOOLS) as stream:
        for _ in stream:
            pass
        return stream.get_final_response()


def responses_loop(ask: Any) -> None:
    items: Any = [{"role": "user", "content": QUESTION}]
    while True:
        answer = ask(items)
        assert answer.status == "completed", answer.status
        calls = [item for item in answer.output if item.type == "function_call"]
        if not calls:
            break
        items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in answer.output]
        for call in calls:
            assert call.status == "completed"
            result = get_weather(**json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
    check(answer.output_text)


def responses() -> None:
    responses_loop(whole_response)


def streamed_responses() -> None:
    responses_loop(streamed_response)


run(chat, streamed_chat, responses, streamed_responses)
