import asyncio
import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from runtime.frontend.harness import ANSWER, running_frontend, short_folder
from runtime.frontend.scripted import TIMEOUT


async def test_requests_are_answered_over_a_unix_socket() -> None:
    async with short_folder() as folder:
        path = f"{folder}/http"
        async with running_frontend(uds=path) as frontend:
            assert frontend.url == f"unix:{path}"
            transport = httpx.AsyncHTTPTransport(uds=path)
            async with httpx.AsyncClient(transport=transport, base_url="http://x", timeout=TIMEOUT) as client:
                body = {"messages": [{"role": "user", "content": "Hi"}]}
                answer = (await client.post("/v1/chat/completions", json=body)).json()
            assert answer["choices"][0]["message"]["content"] == ANSWER
        assert not _exists(path)


async def test_each_connection_of_a_unix_socket_is_a_client() -> None:
    """Otherwise all of them together would get one client's share."""
    async with short_folder() as folder:
        path = f"{folder}/http"
        async with running_frontend(uds=path, max_live_requests=2) as frontend:
            frontend.engine.script.pause_at = 1
            async with contextlib.AsyncExitStack() as stack:
                clients = [
                    await stack.enter_async_context(
                        httpx.AsyncClient(
                            transport=httpx.AsyncHTTPTransport(uds=path), base_url="http://x", timeout=TIMEOUT
                        )
                    )
                    for _ in range(2)
                ]
                asked = [
                    asyncio.create_task(client.post("/v1/completions", json={"prompt": "Hi"})) for client in clients
                ]
                await asyncio.to_thread(frontend.engine.wait_requests, 2)
                frontend.engine.resume()
                assert [(await task).status_code for task in asked] == [200, 200]


async def test_a_start_that_fails_leaves_no_socket_file() -> None:
    async with short_folder() as folder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kvasir.cli.main", "frontend", "demo://", "--uds", f"{folder}/http"),
            *("--link", f"ipc://{folder}/link", "--chat-template", "/no/such/file"),
            stderr=subprocess.PIPE,
        )
        _, err = await asyncio.wait_for(process.communicate(), TIMEOUT)
        assert process.returncode == 2, err
        assert not _exists(f"{folder}/http")


async def test_the_file_is_removed_when_the_process_ends() -> None:
    async with short_folder() as folder:
        path = f"{folder}/http"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kvasir.cli.main", "frontend", "demo://", "--uds", path),
            *("--link", f"ipc://{folder}/link"),
            stderr=subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            async with asyncio.timeout(TIMEOUT):
                while f"listening on unix:{path}" not in (await process.stderr.readline()).decode():
                    pass
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.communicate(), TIMEOUT)
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0
        assert not _exists(path)


def _exists(path: str) -> bool:
    return Path(path).exists()
