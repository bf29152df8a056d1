"""pydantic-ai: agents with a tool and with a type of output, over each of the three APIs."""

from typing import Any

from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from clients.python.replaying import API_KEY, BASE_URL, MODEL, run
from clients.python.replaying import QUESTION as WORDS
from clients.python.weather import PERSON_TEXT, QUESTION, Order, Person, asked_cities, get_weather

provider = OpenAIProvider(base_url=BASE_URL, api_key=API_KEY)
chat_model = OpenAIChatModel(MODEL, provider=provider)
responses_model = OpenAIResponsesModel(MODEL, provider=provider)
messages_model = AnthropicModel(
    MODEL, provider=AnthropicProvider(base_url=BASE_URL.removesuffix("/v1"), api_key=API_KEY)
)


def agent(model: Model = chat_model, temperature: float = 0.0, **options: Any) -> Agent[None, Any]:
    return Agent(model, model_settings={"temperature": temperature, "max_tokens": 300}, retries=0, **options)


def text() -> None:
    for model in (chat_model, responses_model, messages_model):
        assert agent(model).run_sync(WORDS).output


def tool() -> None:
    """The model chooses to call; pydantic-ai sends the result; the model answers."""
    for model in (chat_model, responses_model, messages_model):
        asked_cities.clear()
        result = agent(model, tools=[get_weather]).run_sync(QUESTION)
        assert len(asked_cities) == 1
        assert result.output


def output_type() -> None:
    """As the arguments of a tool, which is what pydantic-ai does by default."""
    for model in (chat_model, responses_model, messages_model):
        assert isinstance(agent(model, temperature=1.0, output_type=Order).run_sync(PERSON_TEXT).output, Order)


def native_output() -> None:
    for model in (chat_model, responses_model):
        found = agent(model, output_type=NativeOutput(Person)).run_sync(PERSON_TEXT).output
        assert isinstance(found, Person)


async def streamed() -> None:
    async with agent(output_type=Order).run_stream(PERSON_TEXT) as result:
        parts = [part async for part in result.stream_output(debounce_by=None)]
        assert parts
        assert isinstance(await result.get_output(), Order)


run(text, tool, output_type, native_output, streamed)
