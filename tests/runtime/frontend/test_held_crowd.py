"""As many held requests as the default limits allow, in a real frontend process: memory, idle CPU, answers.

The figures are printed: `pytest -s` shows them.
"""

import asyncio
import json
import time
from pathlib import Path

import httpx

from kvasir.config.frontend_settings import ServerConfig
from kvasir.process.process_setup import raise_open_files_limit
from runtime.frontend.harness import ANSWER
from runtime.frontend.scripted import TIMEOUT
from runtime.frontend.test_process import Process, cpu_seconds, running_process

LIMIT = ServerConfig().max_held_requests
PROMPT = [5] * 1500
WINDOW_SECONDS = 3.0
PATIENCE = 10 * TIMEOUT
"""Seconds for steps of the whole crowd, on a busy machine."""


async def test_a_crowd_is_held_in_little_memory_and_answered() -> None:
    raise_open_files_limit()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with (
        running_process(ready=False) as process,
        httpx.AsyncClient(base_url=process.client.base_url, limits=limits, timeout=PATIENCE) as client,
    ):
        assert LIMIT == 1000
        pid = process.process.pid
        await client.post("/tokenize", json={"prompt": "warm up"})
        before, began = _resident(pid), time.perf_counter()
        tasks = [asyncio.create_task(_ask(client, stream=number % 2 == 0)) for number in range(LIMIT)]
        await _until_held(process, LIMIT)
        held_seconds, grown = time.perf_counter() - began, _resident(pid) - before

        over = await client.post("/v1/completions", json={"prompt": PROMPT})
        assert over.status_code == 503
        assert "--max-held-requests" in over.json()["error"]["message"]

        used = cpu_seconds(pid)
        await asyncio.sleep(WINDOW_SECONDS)  # a window of time to measure in
        used = (cpu_seconds(pid) - used) / WINDOW_SECONDS

        process.engine.start()
        began = time.perf_counter()
        await asyncio.to_thread(process.engine.wait_requests, 1)
        first_seconds = time.perf_counter() - began
        answers = await asyncio.gather(*tasks)
        all_seconds = time.perf_counter() - began
        await _until_held(process, 0)
    assert answers == [ANSWER] * LIMIT
    assert grown < LIMIT * 256 * 1024
    assert used < 0.3
    print(
        f"\n{LIMIT} requests of {len(PROMPT)} tokens were held after {held_seconds:.1f} s with "
        f"{grown / LIMIT / 1024:.0f} KiB each and {used:.1%} of a CPU; "
        f"from the engine's first Hello to the first request {1000 * first_seconds:.0f} ms, "
        f"to the last answer {all_seconds:.1f} s"
    )


async def _ask(client: httpx.AsyncClient, *, stream: bool) -> str:
    body = {"prompt": PROMPT, "max_tokens": 50, "stream": stream}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    if not stream:
        return str(response.json()["choices"][0]["text"])
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


async def _until_held(process: Process, count: int) -> None:
    wanted = f'kvasir:held_requests{{model_name="demo://"}} {count:.1f}\n'
    async with asyncio.timeout(PATIENCE):
        while wanted not in (await process.client.get("/metrics")).text:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)


def _resident(pid: int) -> int:
    """Bytes of physical memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096
