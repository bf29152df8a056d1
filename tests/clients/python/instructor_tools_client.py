"""instructor: its modes for a JSON Schema and for tools."""

from typing import Any

import instructor
import openai

from clients.python.replaying import API_KEY, BASE_URL, MODEL, run
from clients.python.weather import PERSON_TEXT, Order, Person

ASKED: Any = [{"role": "user", "content": PERSON_TEXT}]


def answer(mode: instructor.Mode, kind: Any, **options: Any) -> Any:
    openai_client = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
    client = instructor.from_openai(openai_client, mode=mode)
    options = {"temperature": 0, "max_tokens": 300, "max_retries": 0, **options}
    return client.chat.completions.create(model=MODEL, messages=ASKED, response_model=kind, **options)


def json_schema() -> None:
    assert isinstance(answer(instructor.Mode.JSON_SCHEMA, Person), Person)
    assert isinstance(answer(instructor.Mode.JSON_SCHEMA, Order, temperature=1.5), Order)


def tools() -> None:
    assert isinstance(answer(instructor.Mode.TOOLS, Person), Person)
    assert isinstance(answer(instructor.Mode.TOOLS, Order, temperature=1.5), Order)


def strict_tools() -> None:
    assert isinstance(answer(instructor.Mode.TOOLS_STRICT, Order, temperature=1.5), Order)


def partial() -> None:
    """The tool is named PartialOrder, which the model was not taught, so its arguments are of a bounded length."""
    for mode, kind in ((instructor.Mode.JSON_SCHEMA, Person), (instructor.Mode.TOOLS, Order)):
        openai_client = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
        client = instructor.from_openai(openai_client, mode=mode)
        parts = list(
            client.chat.completions.create_partial(
                model=MODEL, messages=ASKED, response_model=kind, temperature=0, max_tokens=300
            )
        )
        assert parts
        kind.model_validate(parts[-1].model_dump())


run(json_schema, tools, strict_tools, partial)
