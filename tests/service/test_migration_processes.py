"""Engine processes are killed and frozen while they compute; every client gets the answer of an undisturbed run.

The log probabilities are compared without a tolerance: whichever engine computes a token, as a prefill or a
decode and in whatever crowd, gets the same bits.
"""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event
from time import monotonic, sleep
from typing import Any

import httpx
import pytest

from service.running import Part, Service, running

TOKENS = 200
CLIENTS = 6
TIMEOUT = 60.0
LONG = " ".join(f"pod-{number}" for number in range(150))


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    options = ("--dtype", "float32", "--threads", "1", "--heartbeat-timeout", "3s", "--port", "0")
    with running("serve", "demo://", "--data-parallel-size", "2", *options) as service:
        yield service


@dataclass
class Answer:
    text: str = ""
    finish_reason: str = ""
    logprobs: list[Any] = field(default_factory=list)
    """The log probability of each token, and those of the likeliest tokens."""


class Clients:
    """Clients that repeat their requests until `answers`, so that a lost engine always has some."""

    def __init__(self, service: Service, pool: ThreadPoolExecutor) -> None:
        self.begun: SimpleQueue[int] = SimpleQueue()
        """The number of a client, whenever it gets the first text of an answer."""
        self._ending = Event()
        self._url = f"{service.url}/v1/completions"
        self._answers: list[Future[list[Answer]]] = [pool.submit(self._repeat, n) for n in range(CLIENTS)]

    def answers(self) -> list[list[Answer]]:
        """Let each client end with its present answer, and return all answers of each client."""
        self._ending.set()
        return [answers.result() for answers in self._answers]

    def wait_until_all_have_begun(self) -> None:
        waited_for = set(range(CLIENTS))
        while waited_for:
            waited_for.discard(self.begun.get(timeout=TIMEOUT))

    def _repeat(self, number: int) -> list[Answer]:
        answers = [self._stream(number)]
        while not self._ending.is_set():
            answers.append(self._stream(number))
        return answers

    def _stream(self, number: int) -> Answer:
        prompt = f"{LONG} {number} is" if number % 2 else f"Kvasir {number} is"
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 1.0, "seed": number}
        body |= {"ignore_eos": True, "presence_penalty": 0.5, "stream": True, "logprobs": 2}
        result = Answer()
        with httpx.stream("POST", self._url, json=body, timeout=TIMEOUT) as answer:
            for line in answer.raise_for_status().iter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line.removeprefix("data: "))
                    choice = chunk["choices"][0]
                    if not result.text:
                        self.begun.put(number)
                    result.text += choice["text"]
                    result.finish_reason = choice["finish_reason"] or result.finish_reason
                    if (logprobs := choice["logprobs"]) is not None:
                        result.logprobs += zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
        return result


def busiest_engine(service: Service) -> Part:
    return max(service.engines(), key=lambda engine: service.metric(engine.ops, "vllm:num_requests_running"))


def wait_for_migrations(service: Service, frontend: Part, above: float) -> float:
    deadline = monotonic() + TIMEOUT
    while (moved := service.metric(frontend.ops, "kvasir:migrations_total")) <= above:
        assert monotonic() < deadline, "no request was moved"
        sleep(0.05)
    return moved


def test_killed_and_frozen_engines_change_no_answer(service: Service) -> None:
    [frontend] = [part for part in service.parts() if part.name == "frontend"]
    with ThreadPoolExecutor(CLIENTS) as pool:
        undisturbed = [answers[0] for answers in Clients(service, pool).answers()]
        assert [len(answer.logprobs) for answer in undisturbed] == [TOKENS] * CLIENTS
        count = service.metric(frontend.ops, "vllm:request_success_total")

        def check(clients: Clients) -> None:
            nonlocal count
            for right, answers in zip(undisturbed, clients.answers(), strict=True):
                assert answers == [right] * len(answers)
                count += len(answers)

        killed = Clients(service, pool)
        killed.wait_until_all_have_begun()
        victim = busiest_engine(service)
        os.kill(victim.pid, signal.SIGKILL)
        moved = wait_for_migrations(service, frontend, above=0)
        check(killed)
        service.read_until(rf"rank {victim.name.removeprefix('engine-')}: Ready")
        frozen = Clients(service, pool)
        frozen.wait_until_all_have_begun()
        victim = busiest_engine(service)
        os.kill(victim.pid, signal.SIGSTOP)
        try:
            wait_for_migrations(service, frontend, above=moved)
            check(frozen)
        finally:
            os.kill(victim.pid, signal.SIGCONT)
        check(Clients(service, pool))  # the frozen engine has its old requests no more
    assert victim.pid in [engine.pid for engine in service.engines()]
    assert service.metric(frontend.ops, "vllm:request_success_total") == count
    assert service.metric(frontend.ops, "vllm:time_to_first_token_seconds_count") == count
    assert service.metric(frontend.ops, "vllm:request_generation_tokens_sum") == count * TOKENS
    assert 'exact="false"' not in httpx.get(f"{frontend.ops}/metrics").text
