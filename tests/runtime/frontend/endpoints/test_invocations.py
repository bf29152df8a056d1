from typing import Any

import pytest

from runtime.frontend.harness import ANSWER, MODEL, Frontend, running_frontend
from runtime.frontend.test_streaming import CHAT, COMPLETIONS, QUESTION, events_of

PATH = "/invocations"


def without_ids(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in ("id", "created")}


@pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT, {"messages": QUESTION}), (COMPLETIONS, {"prompt": "Hi", "max_tokens": 4, "echo": True})],
)
async def test_it_answers_as_the_endpoint_of_the_body(frontend: Frontend, path: str, body: dict[str, Any]) -> None:
    async with frontend.http() as client:
        direct = await client.post(path, json=body)
        invoked = await client.post(PATH, json=body)
    assert invoked.status_code == direct.status_code == 200
    assert without_ids(invoked.json()) == without_ids(direct.json())


async def test_it_streams(frontend: Frontend) -> None:
    events = await events_of(frontend, PATH, messages=QUESTION)
    texts = [event["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(texts) == ANSWER


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": 3}, "messages"),
        ({"prompt": None, "messages": None}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"prompt": "Hi", "max_tokens": -1}, "max_tokens"),
    ],
)
async def test_bad_bodies_are_refused_by_field(frontend: Frontend, body: dict[str, Any], param: str) -> None:
    async with frontend.http() as client:
        response = await client.post(PATH, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_it_needs_a_key() -> None:
    async with running_frontend(api_key=("k",)) as frontend, frontend.http() as client:
        assert (await client.post(PATH, json={"prompt": "Hi"})).status_code == 401


async def test_unknown_fields_are_refused_if_the_server_is_strict() -> None:
    async with running_frontend(strict_fields=True) as frontend, frontend.http() as client:
        response = await client.post(PATH, json={"model": MODEL, "prompt": "Hi", "promt": 1})
    assert response.status_code == 400
