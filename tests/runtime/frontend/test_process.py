"""The whole process, started as users start it: its imports, its first answer, its end."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from kvasir.config.process_settings import LinkConfig
from kvasir_contract.exits import ExitCode
from kvasir_contract.failure import find_failure
from kvasir_contract.reasons import Reason
from runtime.frontend.harness import ANSWER, POST_JSON, demo_model, eventually, script_for, short_folder
from runtime.frontend.scripted import TIMEOUT, ScriptedEngine
from runtime.hub.silent_hub import silent_hub

# Runs a frontend and, when it has stopped, prints which of the heavy packages it had imported.
PROGRAM = """
import sys
from kvasir.cli.main import main
code = main(["frontend", "demo://", *sys.argv[1:]])
print(*(name for name in ("torch", "transformers", "numpy", "pandas", "scipy") if name in sys.modules))
sys.exit(code)
"""


@dataclass
class Process:
    process: asyncio.subprocess.Process
    engine: ScriptedEngine
    client: httpx.AsyncClient
    startup_cpu: float
    """Seconds of CPU that the process took until its first answer: unlike wall time, the same on a busy machine."""

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    @property
    def running(self) -> bool:
        return self.process.returncode is None

    async def wait(self) -> tuple[int | None, str, str]:
        """Its exit code, standard output and standard error."""
        out, err = await asyncio.wait_for(self.process.communicate(), TIMEOUT)
        return self.process.returncode, out.decode(), err.decode()

    async def ready_status(self) -> int:
        return (await self.client.get("/health/ready")).status_code

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.client.base_url.host, self.client.base_url.port)

    async def until_refused(self) -> None:
        async def refused() -> bool:
            try:
                _, writer = await self.connect()
            except OSError:
                return True
            writer.close()
            return False

        await eventually(refused)


@asynccontextmanager
async def running_process(
    *options: str, send_buffer: int | None = None, ready: bool = True
) -> AsyncIterator[Process]:
    # Its listening socket is ours, so clients can connect at once.
    async with short_folder() as folder:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            os.set_inheritable(listener.fileno(), True)
            if send_buffer is not None:  # accepted connections take it over
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
            link = LinkConfig(link=(f"ipc://{folder}/link",))
            arguments = ["--link", *link.link, "--fd", str(listener.fileno()), *options]
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", PROGRAM, *arguments),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[listener.fileno()],
            )
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        model, _ = demo_model()
        engine = ScriptedEngine(link, model, script_for())
        async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as client:
            try:
                assert (await client.get("/health/live")).status_code == 200
                startup_cpu = cpu_seconds(process.pid)
                result = Process(process, engine, client, startup_cpu)
                if ready:
                    engine.start()
                    await eventually(lambda: _is(result.ready_status(), 200))
                yield result
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.communicate()
                await asyncio.to_thread(engine.close)


async def test_it_answers_within_seconds_and_never_imports_torch() -> None:
    async with running_process() as process:
        response = await process.client.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]}
        )
        assert response.json()["choices"][0]["message"]["content"] == ANSWER
        title = await asyncio.to_thread(Path(f"/proc/{process.process.pid}/cmdline").read_text)
        assert title.rstrip("\0") == "kvasir: frontend"
        await process.client.get("/metrics")
        await process.client.get("/openapi.json")
        process.signal(signal.SIGTERM)
        code, out, err = await process.wait()
    assert (code, out.strip()) == (0, ""), err
    assert "Traceback" not in err
    assert process.startup_cpu < 3.0


async def test_sigterm_lets_a_stream_finish_on_an_unready_server() -> None:
    async with running_process("--shutdown-delay", "30s") as process:
        process.engine.script.pause_at = 3
        async with _stream(process) as lines:
            first = await anext(lines)
            process.signal(signal.SIGTERM)
            await eventually(lambda: _is(process.ready_status(), 503))
            assert "shutting down" in (await process.client.get("/health/ready")).json()["reason"]
            assert (await process.client.get("/v1/models")).status_code == 200
            assert process.running
            process.engine.resume()
            rest = [line async for line in lines if line]
        assert first.startswith("data: ")
        assert rest[-1] == "data: [DONE]"
        # The second signal ends the delay.
        process.signal(signal.SIGTERM)
        code, _, err = await process.wait()
    assert code == 0, err


async def test_server_stops_accepting_after_the_delay() -> None:
    async with running_process() as process:
        process.engine.script.pause_at = 3
        async with _stream(process) as lines:
            await anext(lines)
            process.signal(signal.SIGTERM)
            await process.until_refused()
            assert process.running
            process.engine.resume()
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        code, _, err = await process.wait()
    assert code == 0, err
    assert "interrupted" not in err


async def test_stream_beyond_the_drain_timeout_ends_with_an_error() -> None:
    async with running_process("--drain-timeout", "300ms") as process:
        process.engine.script.pause_at = 3
        async with _stream(process) as lines:
            await anext(lines)
            process.signal(signal.SIGTERM)
            rest = [line async for line in lines if line]
        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "shutting_down"
        code, _, err = await process.wait()
    assert code == 0, err
    assert "1 request interrupted" in err
    assert "Traceback" not in err


async def test_unstreamed_request_beyond_the_drain_timeout_is_503() -> None:
    async with running_process("--drain-timeout", "300ms") as process:
        process.engine.script.pause_at = 3
        asked = asyncio.create_task(process.client.post("/v1/completions", json={"prompt": "Hi"}))
        await asyncio.to_thread(process.engine.wait_requests, 1)
        process.signal(signal.SIGTERM)
        response = await asked
        assert response.status_code == 503
        assert response.headers["retry-after"]
        assert (await process.wait())[0] == 0


async def test_a_second_signal_stops_at_once() -> None:
    async with running_process() as process:
        process.engine.script.pause_at = 3
        async with _stream(process) as lines:
            await anext(lines)
            process.signal(signal.SIGINT)
            await process.until_refused()
            process.signal(signal.SIGINT)
            rest = [line async for line in lines if line]
        assert "error" in json.loads(rest[-1].removeprefix("data: "))
        code, _, err = await process.wait()
    assert code == 0, err
    assert "Traceback" not in err


async def test_a_client_that_does_not_read_cannot_hold_up_the_stop() -> None:
    async with running_process("--drain-timeout", "300ms", send_buffer=4096) as process:
        process.engine.script.pause_at = 1
        url = process.client.base_url
        # The first chunks carry the prompts, more than all buffers on the way can hold.
        prompts = [[300] * 1900] * 64
        body = json.dumps({"prompt": prompts, "stream": True, "return_token_ids": True}).encode()
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            deaf.connect((url.host, url.port))
            head = POST_JSON.decode() + f"Content-Length: {len(body)}\r\n\r\n"
            deaf.sendall(head.encode() + body)
            await asyncio.to_thread(process.engine.wait_requests, len(prompts))
            process.signal(signal.SIGTERM)
            code, _, err = await process.wait()
    assert code == 0, err
    assert "1 request interrupted" in err
    assert "Traceback" not in err


async def test_idle_connections_do_not_hold_up_the_stop() -> None:
    async with running_process() as process:
        silent, _ = await process.connect()
        used, writer = await process.connect()
        writer.write(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await used.readline()).startswith(b"HTTP/1.1 200")
        process.signal(signal.SIGTERM)
        code, _, err = await process.wait()  # long before --drain-timeout
        assert code == 0, err
        assert await silent.read() == b""
        assert b'"version"' in await used.read()


async def test_request_on_its_way_is_answered_after_listening_ends() -> None:
    async with running_process() as process:
        reader, writer = await process.connect()
        writer.write(b"GET /version HTTP/1.1\r\nHost:")
        await writer.drain()
        await process.client.get("/health/live")  # the server has read the half
        process.signal(signal.SIGTERM)
        await process.until_refused()
        writer.write(b" x\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in head.lower()
        assert b'"version"' in body
        assert (await process.wait())[0] == 0


async def test_sigterm_before_it_serves_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with silent_hub(monkeypatch) as asked:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kvasir.cli.main", "frontend", "hf://org/name", "--port", "0"),
            *("--link", "ipc:///tmp/kvasir-unused-link"),
            stderr=subprocess.PIPE,
        )
        await asked.wait()
        process.send_signal(signal.SIGTERM)
        _, err = await asyncio.wait_for(process.communicate(), TIMEOUT)
    assert process.returncode == 0
    assert err.decode().endswith("stopped before it was ready\n")


def test_a_port_in_use_is_one_line_and_exit_code_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = subprocess.run(
            [sys.executable, "-c", PROGRAM, "--link", "ipc:///tmp/kvasir-unused", "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    assert result.returncode == ExitCode.USER_ERROR
    failure = find_failure(result.stderr.splitlines()[-1])
    assert failure is not None
    assert failure.reason is Reason.INVALID_SPEC
    assert f"--port {port} is in use" in failure.message
    assert "Traceback" not in result.stderr


@asynccontextmanager
async def _stream(process: Process) -> AsyncIterator[AsyncIterator[str]]:
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    async with process.client.stream("POST", "/v1/chat/completions", json=body) as response:
        yield response.aiter_lines()


def cpu_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def _is(status: Awaitable[int], expected: int) -> bool:
    return await status == expected
