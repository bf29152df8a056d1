"""OpenAI's Agents SDK: its runner calls tools until there is an answer."""

import agents
import openai

from clients.python.loops import QUESTION, check, get_weather
from clients.python.replaying import API_KEY, BASE_URL, MODEL, run

agents.set_tracing_disabled(True)


def agent_of(kind: type[agents.OpenAIChatCompletionsModel] | type[agents.OpenAIResponsesModel]) -> agents.Agent:
    client = openai.AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
    return agents.Agent("weather", tools=[agents.function_tool(get_weather)], model=kind(MODEL, client))


async def chat() -> None:
    result = await agents.Runner.run(agent_of(agents.OpenAIChatCompletionsModel), QUESTION)
    check(result.final_output)


async def streamed_chat() -> None:
    result = agents.Runner.run_streamed(agent_of(agents.OpenAIChatCompletionsModel), QUESTION)
    names = [event.name async for event in result.stream_events() if event.type == "run_item_stream_event"]
    assert names.count("tool_called") == 3, names
    check(result.final_output)


async def responses() -> None:
    result = await agents.Runner.run(agent_of(agents.OpenAIResponsesModel), QUESTION)
    check(result.final_output)


async def streamed_responses() -> None:
    result = agents.Runner.run_streamed(agent_of(agents.OpenAIResponsesModel), QUESTION)
    names = [event.name async for event in result.stream_events() if event.type == "run_item_stream_event"]
    assert names.count("tool_called") == 3, names
    check(result.final_output)


run(chat, streamed_chat, responses, streamed_responses)
