"""LangChain: structured output, tools, and an agent that calls one."""

from functools import reduce
from operator import add
from typing import Any

from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai import BadRequestError

from clients.python.replaying import API_KEY, BASE_URL, MODEL, run
from clients.python.weather import PERSON_TEXT, QUESTION, RESULT, Order, Person, asked_cities, get_weather


def model(**options: Any) -> ChatOpenAI:
    options = {"max_tokens": 300, "max_retries": 0, "temperature": 0, **options}
    return ChatOpenAI(base_url=BASE_URL, api_key=API_KEY, model=MODEL, **options)


def json_schema() -> None:
    for strict in (None, True):
        asking = model().with_structured_output(Person, method="json_schema", strict=strict)
        assert isinstance(asking.invoke(PERSON_TEXT), Person)
    nonsense = model(temperature=1.5).with_structured_output(Order, method="json_schema")
    assert all(isinstance(order, Order) for order in nonsense.batch([PERSON_TEXT] * 3))


def function_calling() -> None:
    asking = model().with_structured_output(Person, method="function_calling", include_raw=True)
    found = asking.invoke(PERSON_TEXT)
    assert isinstance(found["parsed"], Person), found
    nonsense = model(temperature=1.5).with_structured_output(Order, method="function_calling")
    assert all(isinstance(order, Order) for order in nonsense.batch([PERSON_TEXT] * 3))


def bound_tools() -> None:
    answer = model().bind_tools([get_weather], tool_choice="any").invoke(QUESTION)
    assert [(call["name"], call["args"].keys()) for call in answer.tool_calls] == [("get_weather", {"city"})]
    assert not answer.invalid_tool_calls


def streamed_call() -> None:
    asking = model().bind_tools([get_weather], tool_choice="any")
    whole: AIMessageChunk = reduce(add, asking.stream(QUESTION))
    expected = asking.invoke(QUESTION)
    assert [call["args"] for call in whole.tool_calls] == [call["args"] for call in expected.tool_calls]
    assert whole.tool_calls


def history_of_tools() -> None:
    call = {"name": "get_weather", "args": {"city": "Oslo"}, "id": "call_1"}
    history = [HumanMessage(QUESTION), AIMessage("", tool_calls=[call])]
    answer = model().bind_tools([get_weather]).invoke([*history, ToolMessage(RESULT, tool_call_id="call_1")])
    assert answer.content
    assert not answer.tool_calls


def agent() -> None:
    asked_cities.clear()
    result = create_agent(model(), tools=[get_weather]).invoke({"messages": [HumanMessage(QUESTION)]})
    kinds = [message.type for message in result["messages"]]
    assert kinds == ["human", "ai", "tool", "ai"], kinds
    assert len(asked_cities) == 1
    assert result["messages"][-1].content


def agent_with_response_format() -> None:
    def answer(strategy: ProviderStrategy[Order] | ToolStrategy[Order]) -> Any:
        agent = create_agent(model(temperature=1.5), tools=[], response_format=strategy)
        try:
            return agent.invoke({"messages": [HumanMessage(PERSON_TEXT)]})["structured_response"]
        except BadRequestError as error:
            return error.code

    assert isinstance(answer(ToolStrategy(Order)), Order)
    # It sends `tools: []` (langchain issue 37184), which OpenAI and vLLM reject too.
    assert answer(ProviderStrategy(Order)) == "empty_array"


async def asynchronous() -> None:
    asking = model().with_structured_output(Person, method="json_schema")
    assert isinstance(await asking.ainvoke(PERSON_TEXT), Person)


run(
    json_schema,
    function_calling,
    bound_tools,
    streamed_call,
    history_of_tools,
    agent,
    agent_with_response_format,
    asynchronous,
)
