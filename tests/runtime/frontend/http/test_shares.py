"""One client cannot take all slots: its share is a fraction of --max-live-requests."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from kvasir.frontend.http.access import client_of, slots_of
from runtime.frontend.harness import Frontend, running_frontend

LIMIT = 8
SHARE = 4


@pytest.fixture
async def shared() -> AsyncIterator[Frontend]:
    async with running_frontend(max_live_requests=LIMIT, api_key=("first", "second")) as frontend:
        frontend.engine.script.pause_at = 1
        yield frontend


def client_with(frontend: Frontend, key: str) -> httpx.AsyncClient:
    return frontend.http(Authorization=f"Bearer {key}")


async def test_a_key_gets_its_share_and_another_key_the_rest(shared: Frontend) -> None:
    async with client_with(shared, "first") as first, client_with(shared, "second") as second:
        many = asyncio.create_task(first.post("/v1/completions", json={"prompt": "Hi", "n": SHARE}))
        await asyncio.to_thread(shared.engine.wait_requests, SHARE)
        refused = await first.post("/v1/completions", json={"prompt": "Hi"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_requests")
        assert "--max-client-share" in refused.json()["error"]["message"]
        assert refused.headers["retry-after"] == "1"
        other = asyncio.create_task(second.post("/v1/completions", json={"prompt": ["Hi"] * 2, "n": 2}))
        await asyncio.to_thread(shared.engine.wait_requests, 2 * SHARE)
        shared.engine.script.pause_at = None
        shared.engine.resume()
        assert (await many).status_code == (await other).status_code == 200
        await shared.idle()
        assert not shared.service.shares.held
        assert (await first.post("/v1/completions", json={"prompt": "Hi"})).status_code == 200


async def test_a_request_larger_than_a_share_is_400(shared: Frontend) -> None:
    async with client_with(shared, "first") as client:
        for body, param in (({"prompt": ["Hi"] * (SHARE + 1)}, "prompt"), ({"prompt": "Hi", "n": SHARE + 1}, "n")):
            refused = await client.post("/v1/completions", json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
            assert f"at most {SHARE}" in refused.json()["error"]["message"]
    await shared.idle()
    assert not shared.service.shares.held


async def test_every_form_of_the_path_needs_a_share(shared: Frontend) -> None:
    """A route's pattern allows a line feed behind the path."""
    async with client_with(shared, "first") as client:
        many = asyncio.create_task(client.post("/v1/completions", json={"prompt": "Hi", "n": SHARE}))
        await asyncio.to_thread(shared.engine.wait_requests, SHARE)
        refused = await client.post("/v1/completions%0A", json={"prompt": "Hi"})
        assert refused.status_code == 429
        shared.engine.resume()
        assert (await many).status_code == 200


async def test_what_does_not_generate_needs_no_share(shared: Frontend) -> None:
    async with client_with(shared, "first") as client:
        many = asyncio.create_task(client.post("/v1/completions", json={"prompt": "Hi", "n": SHARE}))
        await asyncio.to_thread(shared.engine.wait_requests, SHARE)
        assert (await client.post("/tokenize", json={"prompt": "Hi"})).status_code == 200
        shared.engine.resume()
        assert (await many).status_code == 200


def test_client_is_one_of_several_keys_or_a_connection() -> None:
    scope = {"client": ("10.0.0.1", 5000), "headers": [(b"authorization", b"Bearer first")]}
    assert client_of(scope, 2) == ("first", "first")
    assert client_of({**scope, "headers": [(b"x-api-key", b"second")]}, 2) == ("second", "second")
    assert client_of(scope, 1) == ("10.0.0.1:5000", "10.0.0.1")
    assert client_of({"client": None, "headers": []}, 0) == (":0", "")


@pytest.mark.parametrize(
    ("body", "slots"),
    [
        ({}, 1),
        ({"prompt": [5, 6]}, 1),
        ({"prompt": ["a", "b"], "n": 3}, 6),
        ({"prompt": [[5]], "n": 1, "best_of": 4}, 4),
        ({"n": True}, 1),
        ({"n": "many", "prompt": []}, 1),
        ({"n": -5}, 1),
    ],
)
def test_slots_are_the_choices_of_all_prompts(body: dict[str, object], slots: int) -> None:
    assert slots_of(body) == slots
