"""No body within --max-request-bytes holds up the event loop or the memory, at the real limits."""

import asyncio
import gc
import http.client
import json
import resource
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from kvasir.frontend.http.bodies import json_cost
from kvasir.frontend.http.bodies.body_memory import UNCOUNTED, ParsedBodies
from kvasir.frontend.http.bodies.json_cost import MAX_CONTAINERS, MAX_MEMBERS, MAX_VALUES
from kvasir.frontend.request_bodies.body import MAX_BIASES, MAX_FIELDS, MAX_MESSAGES, MAX_PARTS
from runtime.frontend.harness import Frontend, running_frontend
from runtime.frontend.scripted import TIMEOUT

LARGEST = 32 * 2**20
STEP_SECONDS = 0.35
"""CPU time of one step of the event loop. The aim is 0.1 s, the old ones took 1.5 to 11 s, and machines differ."""
GROWTH = 256 * 2**20
"""Bytes that this process may grow by for one body: its text in client and server, and its values."""
TICK = 0.002


@asynccontextmanager
async def measured_steps() -> AsyncIterator[list[float]]:
    """The CPU seconds that the event loop's thread used between the turns of a task.

    Garbage collections do not visit the objects of earlier tests: a server has none of them.
    """
    steps = [0.0]

    async def tick() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(TICK)
            now = time.thread_time()
            steps.append(now - last)
            last = now

    gc.collect()
    gc.freeze()
    ticker = asyncio.create_task(tick())
    try:
        yield steps
        await asyncio.sleep(2 * TICK)
    finally:
        ticker.cancel()


@contextmanager
def bounded_growth() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < GROWTH


async def send(frontend: Frontend, path: str, body: bytes) -> tuple[int, Any]:
    """Send from another thread, which leaves the event loop to the server."""

    def exchange() -> tuple[int, Any]:
        host, port = frontend.url.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT)
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        result = answer.status, json.loads(answer.read())
        connection.close()
        return result

    return await asyncio.to_thread(exchange)


def filled(head: bytes, item: bytes, tail: bytes, size: int = LARGEST - 100) -> bytes:
    """A body with as many items as fit."""
    count = (size - len(head) - len(tail)) // (len(item) + 1)
    return head + b",".join([item] * count) + tail


def biases(count: int) -> bytes:
    return b'{"prompt":"Hi","logit_bias":{' + b",".join(b'"%d":1' % number for number in range(count)) + b"}}"


CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGE = b'{"role":"user","content":""}'
HUGE: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "messages": (CHAT, lambda: filled(b'{"messages":[', MESSAGE, b"]}"), "members of objects"),
    "biases": (COMPLETIONS, lambda: biases(2_600_000), "members of objects"),
    "token ids": (COMPLETIONS, lambda: filled(b'{"prompt":[', b"5", b"]}"), f"more than {MAX_VALUES} values"),
    "prompts": (COMPLETIONS, lambda: filled(b'{"prompt":[', b"[5]", b"]}"), "arrays and objects"),
    "texts": (COMPLETIONS, lambda: filled(b'{"prompt":[', b'""', b"]}"), f"more than {MAX_VALUES} values"),
    "objects": (COMPLETIONS, lambda: filled(b'{"prompt":[', b'{"":5}', b"]}"), "arrays and objects"),
    "brackets": (COMPLETIONS, lambda: b"[" * LARGEST, "arrays and objects"),
    "quotes": (COMPLETIONS, lambda: b'"' * LARGEST, "not valid JSON"),
    "escapes": (COMPLETIONS, lambda: b'{"prompt":"' + b'\\"[' * (LARGEST // 3 - 10) + b'"}', "characters"),
    "open text": (COMPLETIONS, lambda: b'{"prompt":"' + b"[" * (LARGEST - 20), "not valid JSON"),
    "backslashes": (COMPLETIONS, lambda: b'{"prompt":"[[' + b"[\\" * (LARGEST // 2 - 20), "not valid JSON"),
}


@pytest.mark.parametrize("name", HUGE)
async def test_a_huge_body_is_refused_while_others_are_served(frontend: Frontend, name: str) -> None:
    path, make, message = HUGE[name]
    body = make()
    assert len(body) > 26 * 2**20
    with bounded_growth():
        async with measured_steps() as steps:
            status, answer = await send(frontend, path, body)
    assert (status, message in answer["error"]["message"]) == (400, True), answer
    assert max(steps) < STEP_SECONDS


JUST_BELOW: dict[str, tuple[str, Callable[[], bytes]]] = {
    "messages": (CHAT, lambda: filled(b'{"messages":[', MESSAGE, b"]}", 29 * 75_000 - 1_000)),
    "prompts": (COMPLETIONS, lambda: filled(b'{"prompt":[', b"[5]", b"]}", 4 * (MAX_CONTAINERS - 10))),
    "biases": (COMPLETIONS, lambda: biases(MAX_MEMBERS - 10)),
    "token ids": (COMPLETIONS, lambda: filled(b'{"prompt":[', b"500", b"]}", 4 * MAX_VALUES)),
    "cut": (COMPLETIONS, lambda: filled(b'{"truncate_prompt_tokens":5,"prompt":[', b"500", b"]}", 4 * MAX_VALUES)),
    "texts": (COMPLETIONS, lambda: filled(b'{"prompt":[', b'"abc"', b"]}", 6 * MAX_VALUES)),
    "fields": (CHAT, lambda: b"{" + b",".join(b'"%d":1' % number for number in range(140_000)) + b"}"),
    "kwargs": (
        CHAT,
        lambda: (
            b'{"messages":[],"chat_template_kwargs":{' + b",".join(b'"%d":1' % n for n in range(140_000)) + b"}}"
        ),
    ),
}


@pytest.mark.parametrize("name", JUST_BELOW)
async def test_body_just_below_the_parsing_limits_holds_nothing_up(frontend: Frontend, name: str) -> None:
    path, make = JUST_BELOW[name]
    async with measured_steps() as steps:
        status, answer = await send(frontend, path, make())
    assert status in (200, 400)
    if status == 400:
        assert answer["error"].get("code") != "too_many_values", answer
    assert max(steps) < STEP_SECONDS


async def test_large_bodies_that_arrive_together_take_their_turns(frontend: Frontend) -> None:
    """Each may take a step that is nearly too long: no two of them are parsed in one turn of the event loop."""
    path, make = JUST_BELOW["token ids"]
    body = make()
    async with measured_steps() as steps:
        answers = await asyncio.gather(*(send(frontend, path, body) for _ in range(8)))
    assert {status for status, _ in answers} == {400}
    assert max(steps) < STEP_SECONDS


async def test_body_does_not_wait_for_another_counted_in_a_thread(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, parsed = threading.Event(), threading.Event()

    def count(body: bytes, max_values: int) -> str | None:
        counting.set()
        assert parsed.wait(TIMEOUT)
        return "more than 5 things"

    monkeypatch.setattr(json_cost, "_problem_outside_strings", count)
    slow = asyncio.create_task(send(frontend, COMPLETIONS, filled(b'{"prompt":[', b'""', b"]}", 4 * MAX_VALUES)))
    assert await asyncio.to_thread(counting.wait, TIMEOUT)
    status, answer = await send(frontend, COMPLETIONS, b'{"prompt":"' + b"x" * 2 * json_cost.SMALL + b'"}')
    parsed.set()
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert "more than 5 things" in (await slow)[1]["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "param", "limit"),
    [
        (CHAT, {"messages": [{}] * (MAX_MESSAGES + 1)}, "messages", MAX_MESSAGES),
        (CHAT, {"messages": [{"role": "user", "content": [{}] * (MAX_PARTS + 1)}]}, "messages", MAX_PARTS),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{}] * (MAX_PARTS + 1)}]}, "messages", MAX_PARTS),
        ("/tokenize", {"messages": [{}] * (MAX_MESSAGES + 1)}, "messages", MAX_MESSAGES),
        (COMPLETIONS, {"prompt": "Hi", "logit_bias": {str(n): 1 for n in range(3000)}}, "logit_bias", 1536),
        (COMPLETIONS, {"prompt": "Hi", "allowed_token_ids": [5] * 3000}, "allowed_token_ids", 1536),
        (COMPLETIONS, {"prompt": [5] * 2048}, "prompt", 2047),
        (COMPLETIONS, {"prompt": ["Hi"] * 2049}, "prompt", 2048),
        (COMPLETIONS, {"prompt": [[5], [5] * 2048]}, "prompt", 2047),
        (COMPLETIONS, {str(n): 1 for n in range(MAX_FIELDS + 1)}, str(MAX_FIELDS), MAX_FIELDS),
    ],
)
async def test_too_many_items_of_a_field_are_400(
    frontend: Frontend, path: str, body: dict[str, Any], param: str, limit: int
) -> None:
    status, answer = await send(frontend, path, json.dumps(body).encode())
    assert (status, answer["error"]["param"]) == (400, param)
    assert f"at most {limit}" in answer["error"]["message"], answer


def test_the_limit_of_biases_is_what_a_step_can_convert() -> None:
    assert MAX_BIASES <= MAX_MEMBERS


async def test_a_long_text_may_have_any_characters(frontend: Frontend) -> None:
    """Brackets, commas and quotes within a text cost nothing."""
    body = json.dumps({"prompt": '[{"a": 1, "b": \\ 2}], ' * 20_000, "max_tokens": 1}).encode()
    assert body.count(b"[") < MAX_CONTAINERS
    body = body.replace(b"[", b"[[[[[[[")
    assert body.count(b"[") > MAX_CONTAINERS
    status, answer = await send(frontend, COMPLETIONS, body)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


async def test_parsed_bodies_are_bounded_together() -> None:
    size = 2 * UNCOUNTED
    body = json.dumps({"prompt": "Hi", "user": "x" * size, "max_tokens": 8}).encode()
    async with running_frontend(max_parsed_bytes=len(body) + 100) as frontend:
        frontend.engine.script.pause_at = 1
        first = asyncio.create_task(send(frontend, COMPLETIONS, body))
        await asyncio.to_thread(frontend.engine.wait_requests, 1)
        assert frontend.service.parsed_bodies.held == len(body)
        status, answer = await send(frontend, COMPLETIONS, body)
        assert (status, answer["error"]["code"]) == (429, "too_many_requests")
        assert "--max-parsed-bytes" in answer["error"]["message"]
        small = asyncio.create_task(send(frontend, COMPLETIONS, b'{"prompt":"Hi","max_tokens":1}'))
        assert (await small)[0] == 200
        frontend.engine.resume()
        assert (await first)[0] == 200
        await frontend.idle()
        assert frontend.service.parsed_bodies.held == 0
        frontend.engine.script.pause_at = None
        assert (await send(frontend, COMPLETIONS, body))[0] == 200


@pytest.mark.parametrize(("end", "width"), [("", 1), ("\U0001f642", 4)])
@pytest.mark.parametrize("escaped", [True, False])
async def test_a_parsed_text_counts_with_the_width_of_its_characters(
    frontend: Frontend, end: str, width: int, escaped: bool
) -> None:
    frontend.engine.script.pause_at = 1
    body = json.dumps({"prompt": "Hi", "user": "x" * 2 * UNCOUNTED + end}, ensure_ascii=escaped).encode()
    task = asyncio.create_task(send(frontend, COMPLETIONS, body))
    await asyncio.to_thread(frontend.engine.wait_requests, 1)
    assert frontend.service.parsed_bodies.held == width * len(body)
    frontend.engine.resume()
    assert (await task)[0] == 200


def test_a_body_that_is_alone_has_room() -> None:
    ParsedBodies(10).hold(100)
