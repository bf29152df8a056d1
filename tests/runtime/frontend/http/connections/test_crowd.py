"""Many clients at once, some of whom leave: everyone else is served and nothing is left behind."""

import asyncio

import httpx

from runtime.frontend.harness import ANSWER, Frontend

CLIENTS = 64
REQUESTS = 400


async def ask(client: httpx.AsyncClient, number: int) -> str:
    """One request of a kind that its number decides; returns the text that came."""
    body = {"prompt": f"question {number}", "max_tokens": 50, "stream": number % 2 == 0}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        if number % 5 == 0:
            return ""  # leaves, at the latest after the first token
        raw = (await response.aread()).decode()
    if not body["stream"]:
        return str(response.json()["choices"][0]["text"])
    assert raw.endswith("data: [DONE]\n\n")
    return ANSWER if raw.count('"finish_reason":"stop"') == 1 else raw


async def test_a_crowd_is_served_and_nothing_is_left(frontend: Frontend) -> None:
    numbers = iter(range(REQUESTS))
    texts: dict[int, str] = {}

    async def keep_asking(client: httpx.AsyncClient) -> None:
        for number in numbers:
            texts[number] = await ask(client, number)

    async with frontend.http() as client, asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(keep_asking(client))
    assert len(texts) == REQUESTS
    assert all(text == ("" if number % 5 == 0 else ANSWER) for number, text in texts.items())
    await frontend.idle()
