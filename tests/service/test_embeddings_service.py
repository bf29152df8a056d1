"""An engine is killed in the middle of an embeddings request; the answer is that of an undisturbed run."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import Any

import httpx
import pytest

from service.running import Part, Service, running

INPUTS = [f"pod {number} " * (1 + number % 90) for number in range(200)]
CLIENTS = 3  # so that an engine has inputs at any time
TIMEOUT = 120.0


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    options = (
        "--task",
        "embed",
        "--dtype",
        "float32",
        "--threads",
        "1",
        "--heartbeat-timeout",
        "3s",
        "--port",
        "0",
    )
    with running("serve", "demo://", "--data-parallel-size", "2", *options) as service:
        yield service


def embed(service: Service) -> list[list[float]]:
    body: dict[str, Any] = {"input": INPUTS}
    answer = httpx.post(f"{service.url}/v1/embeddings", json=body, timeout=TIMEOUT)
    answer.raise_for_status()
    return [each["embedding"] for each in answer.json()["data"]]


def wait_for_migrations(service: Service, frontend: Part) -> None:
    """Ask another process: it has no event to wait for."""
    end = time.monotonic() + TIMEOUT
    while service.metric(frontend.ops, "kvasir:migrations_total") == 0:
        assert time.monotonic() < end, "no request was moved"
        time.sleep(0.02)


def test_inputs_of_a_killed_engine_are_computed_again(service: Service) -> None:
    [frontend] = [part for part in service.parts() if part.name == "frontend"]
    undisturbed = embed(service)
    moved = threading.Event()
    answered: Queue[list[list[float]]] = Queue()

    def embed_until_moved() -> None:
        while not moved.is_set():
            answered.put(embed(service))

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(embed_until_moved) for _ in range(CLIENTS)]
        try:
            answers = [answered.get(timeout=TIMEOUT)]
            os.kill(service.engines()[0].pid, signal.SIGKILL)
            wait_for_migrations(service, frontend)
        finally:
            moved.set()
        for client in clients:
            client.result()
    answers += answered.queue
    assert answers == [undisturbed] * len(answers)
    assert service.metric(frontend.ops, "vllm:request_success_total") == (1 + len(answers)) * len(INPUTS)
