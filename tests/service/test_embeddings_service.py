"""An engine is killed in the middle of an embeddings request; the answer is that of an undisturbed run."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from service.running import Part, Service, running

INPUTS = [f"pod {number} " * (1 + number % 90) for number in range(600)]
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


def busy_engine(service: Service) -> Part:
    """Another process: it has no event to wait for."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        for engine in service.engines():
            if service.metric(engine.ops, "vllm:num_requests_waiting") > 0:
                return engine
        time.sleep(0.02)
    raise AssertionError("no engine got a request")


def test_inputs_of_a_killed_engine_are_computed_again(service: Service) -> None:
    [frontend] = [part for part in service.parts() if part.name == "frontend"]
    undisturbed = embed(service)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(embed, service)
        os.kill(busy_engine(service).pid, signal.SIGKILL)
        assert answer.result() == undisturbed
    assert service.metric(frontend.ops, "kvasir:migrations_total") > 0
    assert service.metric(frontend.ops, "vllm:request_success_total") == 2 * len(INPUTS)
