"""Time `kvasir serve` from its spawn to its first token, and read its memory.

All is measured from outside, every ten milliseconds, except the phases that engines report on their ops ports.
"""

import asyncio
import contextlib
import os
import re
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from kvasir.benchmark.figures import Figures
from kvasir.config.options import CommandFailed
from kvasir.process.progress import progress_bar
from kvasir_contract.endpoints import LIVE_PATH, STATUS_PATH
from kvasir_contract.status_report import StatusReport

_LOOK: Final = 0.01
# Seconds in which a server may end before it is killed.
_ENDING: Final = 30.0
_LOGS = re.compile(r"Logs of .*: (.*-(\d+))$")
_OPS = re.compile(r"probes and metrics on (http://\S+)")


@dataclass
class Startup:
    times: dict[str, float] = field(default_factory=dict)
    """Seconds after the spawn; `first token` counts from Ready."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds of each phase of the slowest engine."""
    peak_memory: dict[str, int] = field(default_factory=dict)
    """Bytes by process, after the first token."""


def measure_startups(
    argv: Sequence[str], env: Mapping[str, str], api_key: str | None, repeat: int, limit: float
) -> list[Startup]:
    """Start `kvasir` with these arguments (serve MODEL …) several times. Raises CommandFailed."""
    result = []
    with progress_bar("starts") as progress:
        for number in range(repeat):
            progress(number, repeat)
            result.append(asyncio.run(_measure_one(argv, env, api_key, limit)))
    return result


async def _measure_one(argv: Sequence[str], env: Mapping[str, str], api_key: str | None, limit: float) -> Startup:
    spawned = time.perf_counter()
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "kvasir.cli.main", *argv),
        env=dict(env),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = _Output(server)
    try:
        async with asyncio.timeout(limit):
            return await _follow(server.pid, output, api_key, spawned)
    except TimeoutError:
        raise CommandFailed(f"the server was not ready within {limit:g} s\n{output.tail}") from None
    finally:
        await _end(server)
        output.reader.cancel()


class _Output:
    """The output of the server, read as it comes."""

    def __init__(self, server: asyncio.subprocess.Process) -> None:
        self._server = server
        self._lines: list[str] = []
        self._logs: asyncio.Future[re.Match[str]] = asyncio.get_running_loop().create_future()
        self.reader = asyncio.create_task(self._read())

    @property
    def tail(self) -> str:
        return "\n".join(self._lines[-12:])

    async def logs(self) -> tuple[Path, int]:
        """Return the directory of the logs, and the port. Raises CommandFailed if the server ends before it
        logs them."""
        found = await self._logs
        return Path(found[1]), int(found[2])

    async def _read(self) -> None:
        assert self._server.stdout is not None
        async for line in self._server.stdout:
            text = line.decode(errors="replace").rstrip()
            self._lines.append(text)
            if (found := _LOGS.match(text)) and not self._logs.done():
                self._logs.set_result(found)
        if not self._logs.done():
            self._logs.set_exception(CommandFailed(f"the server has ended\n{self.tail}"))


async def _follow(pid: int, output: _Output, api_key: str | None, spawned: float) -> Startup:
    result = Startup()
    logs, port = await output.logs()
    headers = {b"Authorization": f"Bearer {api_key}".encode()} if api_key else {}
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=None, trust_env=False) as http:
        for what, path in (("frontend answers", LIVE_PATH), ("ready", "/health")):
            await _until_success(http, path, output)
            result.times[what] = time.perf_counter() - spawned
        asked = time.perf_counter()
        await _first_token(http)
        result.times["first token"] = time.perf_counter() - asked
        engines = [await _phases(http, url) for url in _ops_urls(logs)]
    result.phases = max(engines, key=lambda phases: sum(phases.values()))
    for process in memory_of_tree(pid):
        words = [word for part in process.command for word in part.split()]
        kind = next((word for word in words if word in ("frontend", "engine")), "supervisor")
        result.peak_memory[kind] = result.peak_memory.get(kind, 0) + process.peak
    return result


async def _until_success(http: httpx.AsyncClient, path: str, output: _Output) -> None:
    while True:
        if output.reader.done():
            raise CommandFailed(f"the server has ended\n{output.tail}")
        with contextlib.suppress(httpx.TransportError):
            if (await http.get(path)).is_success:
                return
        await asyncio.sleep(_LOOK)


async def _first_token(http: httpx.AsyncClient) -> None:
    models = (await http.get("/v1/models")).raise_for_status().json()
    body = {"model": models["data"][0]["id"], "prompt": [1, 2, 3, 4], "max_tokens": 1}
    answer = await http.post("/v1/completions", json=body)
    if answer.is_error:
        raise CommandFailed(f"the first request failed: {answer.text[:200]}")


def _ops_urls(logs: Path) -> list[str]:
    # Each engine writes it into its log.
    urls = []
    for log in sorted(logs.glob("engine-*.log")):
        found = _OPS.search(log.read_text(errors="replace"))
        if found is None:
            raise CommandFailed(f"{log} does not show the engine's ops port: leave out --log-level")
        urls.append(found[1])
    return urls


async def _phases(http: httpx.AsyncClient, ops_url: str) -> dict[str, float]:
    answer = await http.get(ops_url + STATUS_PATH)
    return dict(StatusReport.from_json(answer.content).startup_seconds)


async def _end(server: asyncio.subprocess.Process) -> None:
    if server.returncode is None:
        # Not `terminate`: it would look for the exit code itself, and take it away from asyncio.
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(_ENDING):
            await server.wait()
    except TimeoutError:
        server.kill()
        await server.wait()


def startup_figures(startups: Sequence[Startup]) -> Figures:
    return {
        "starts": len(startups),
        "seconds": _spread([each.times for each in startups]),
        "engine_phase_seconds": _spread([each.phases for each in startups]),
        "peak_memory_bytes": _spread([each.peak_memory for each in startups]),
    }


def startup_lines(figures: Figures) -> list[str]:
    def rows(values: dict[str, dict[str, float]], scale: float) -> list[str]:
        return [
            f"  {name:<18}" + "".join(f"{value / scale:9.2f}" for value in row.values())
            for name, row in values.items()
        ]

    return [
        f"{figures['starts']} starts" + " " * 12 + "   median      min      max",
        "seconds after the spawn (the first token: after ready)",
        *rows(figures["seconds"], 1),
        "seconds of the engine's phases",
        *rows(figures["engine_phase_seconds"], 1),
        "peak memory, GiB",
        *rows(figures["peak_memory_bytes"], 2**30),
    ]


def _spread(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return median, minimum and maximum of each name's values."""
    result = {}
    for name in runs[0]:
        values = [run[name] for run in runs if name in run]
        result[name] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return result


@dataclass(frozen=True)
class ProcessMemory:
    """Bytes of a process now, and at most."""

    command: tuple[str, ...]
    resident: int
    peak: int


def memory_of_tree(pid: int) -> list[ProcessMemory]:
    """Return the memory of each process, the given one first. A process that ends meanwhile is left out."""
    found = []
    for each in _tree(pid):
        try:
            status = Path(f"/proc/{each}/status").read_text()
            command = Path(f"/proc/{each}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        sizes = {name: value for name, _, value in (line.partition(":") for line in status.splitlines())}
        if "VmHWM" in sizes:  # not of a process that has ended and not been waited for
            found.append(ProcessMemory(tuple(command), _kib(sizes["VmRSS"]), _kib(sizes["VmHWM"])))
    return found


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for children in sorted(Path(f"/proc/{pid}/task").glob("*/children")):
        try:
            pids = [int(child) for child in children.read_text().split()]
        except OSError:  # the thread has ended
            continue
        for child in pids:
            yield from _tree(child)


def _kib(text: str) -> int:
    return int(text.split()[0]) * 1024
