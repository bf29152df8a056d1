"""LangChain: its agent calls tools until there is an answer."""

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from clients.python.loops import QUESTION, REASONS, check, get_weather
from clients.python.replaying import API_KEY, BASE_URL, MODEL, run


def answer(*, streaming: bool = False, responses: bool = False) -> None:
    model = ChatOpenAI(
        model=MODEL,
        base_url=BASE_URL,
        api_key=SecretStr(API_KEY),
        max_retries=0,
        streaming=streaming,
        use_responses_api=responses,
    )
    agent = create_agent(model, tools=[tool(get_weather)])
    messages = agent.invoke({"messages": [("user", QUESTION)]})["messages"]
    check(messages[-1].text)
    said = [message for message in messages if message.type == "ai"]
    assert not any(message.invalid_tool_calls for message in said)
    if not responses:
        assert [message.response_metadata["finish_reason"] for message in said] == REASONS


def chat() -> None:
    answer()


def streamed_chat() -> None:
    answer(streaming=True)


def responses() -> None:
    answer(responses=True)


def streamed_responses() -> None:
    answer(streaming=True, responses=True)


run(chat, streamed_chat, responses, streamed_responses)
