"""One server's life for compare.py: spawn it, wait until it answers, put load on it, see its memory, end it."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bench.schemas import response_format

from kvasir.benchmark.startup import memory_of_tree

# Seconds until a server answers, at most.
START_LIMIT = 300.0
STOP_LIMIT = 30.0


class ServerFailed(Exception):
    """The message has the end of its log."""


@dataclass(frozen=True)
class Load:
    name: str
    # Models of compare.py that they are for.
    model: str
    streams: int
    input_len: int
    output_len: int
    requests: int
    # The figure to compare, by its name in `kvasir bench serve --json`.
    figure: str
    temperature: int = 0
    # Different JSON Schemas for the outputs, in turn. 0: none.
    schemas: int = 0


class Server:
    """A running server that has answered."""

    def __init__(
        self, process: subprocess.Popen[bytes], url: str, load_options: Sequence[str], start_up: float
    ) -> None:
        # Seconds from the spawn to the first answer.
        self.start_up = start_up
        self._process = process
        self._url = url
        self._load_options = load_options

    def measure(self, load: Load, vocabulary: int, seed: int) -> dict[str, Any]:
        """Return the figures of one load. Each seed has other prompts: a prefix cache has none of them."""
        with tempfile.TemporaryDirectory() as folder:
            figures = Path(folder) / "figures.json"
            options = {
                "--concurrency": load.streams,
                "--requests": load.requests,
                "--input-len": load.input_len,
                "--output-len": load.output_len,
                "--vocab-high": vocabulary,
                "--seed": seed,
                "--temperature": load.temperature,
                "--json": figures,
            }
            if load.schemas:
                options["--prompts"] = _with_schemas(Path(folder), load, vocabulary, seed)
            command = [sys.executable, "-m", "kvasir.cli.main", "bench", "serve", self._url, *self._load_options]
            command += [str(part) for option in options.items() for part in option]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise ServerFailed(f"the load {load.name} failed:\n{done.stdout[-500:]}{done.stderr[-1500:]}")
            return dict(json.loads(figures.read_text()))

    def peak_memory(self) -> int:
        """Return the sum of the largest memory of each process, in bytes."""
        return sum(process.peak for process in memory_of_tree(self._process.pid))


@contextlib.contextmanager
def running(
    command: Sequence[str],
    environ: Mapping[str, str],
    port: int,
    endpoint: str,
    load_options: Sequence[str],
    model: str | None = None,
) -> Iterator[Server]:
    """Start a server. `model` None: its first one. Raises ServerFailed if it ends or does not answer in time."""
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        spawned = time.perf_counter()
        process = subprocess.Popen(
            command, env={**os.environ, **environ}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            _wait_for_answer(process, url, endpoint, model, spawned, log)
            options = ["--endpoint", endpoint, *load_options, *(["--model", model] if model else [])]
            yield Server(process, url, options, time.perf_counter() - spawned)
        finally:
            _end(process)


def _with_schemas(folder: Path, load: Load, vocabulary: int, seed: int) -> Path:
    """Write the prompts that `kvasir bench serve` would draw, each with a schema."""
    rng, file = random.Random(seed), folder / "prompts.jsonl"
    prompts = [rng.choices(range(100, vocabulary), k=load.input_len) for _ in range(load.requests)]
    entries = [
        {"prompt": prompt, "response_format": response_format(f"s{number % load.schemas}")}
        for number, prompt in enumerate(prompts)
    ]
    file.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    return file


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_answer(
    process: subprocess.Popen[bytes], url: str, endpoint: str, model: str | None, spawned: float, log: IO[bytes]
) -> None:
    while not _answers(url, endpoint, model):
        if process.poll() is not None or time.perf_counter() - spawned > START_LIMIT:
            log.seek(0)
            raise ServerFailed(f"it does not answer; its log ends:\n{log.read()[-2000:].decode(errors='replace')}")
        time.sleep(0.05)


def _answers(url: str, endpoint: str, model: str | None) -> bool:
    """Return whether one token can be generated; a server that only listens is not ready."""
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:
            model = model or json.load(answer)["data"][0]["id"]
        words: dict[str, object] = {"prompt": "the"}
        if endpoint == "chat":
            words = {"messages": [{"role": "user", "content": "the"}]}
        body = json.dumps({"model": model, "max_tokens": 1, **words}).encode()
        path = "/v1/chat/completions" if endpoint == "chat" else "/v1/completions"
        request = urllib.request.Request(url + path, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, LookupError, ValueError):
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
