"""Several frontends behind one port, as `kvasir serve --api-server-count` runs them."""

import os
import signal

import httpx

from service.running import running

BODY = {"prompt": "Kvasir is", "max_tokens": 4, "temperature": 0}


def test_each_of_two_frontends_answers_on_the_same_port() -> None:
    with running("serve", "demo://", "--port", "0", "--api-server-count", "2", "--threads", "1") as service:
        frontends = [part for part in service.parts() if part.name == "frontend"]
        assert len(frontends) == 2
        answers = []
        for silent in frontends:  # the other one has to answer
            os.kill(silent.pid, signal.SIGSTOP)
            try:
                answer = httpx.post(f"{service.url}/v1/completions", json=BODY, timeout=60)
            finally:
                os.kill(silent.pid, signal.SIGCONT)
            answers.append(answer.json()["choices"][0]["text"])
        assert answers[0] == answers[1]
        assert all(
            service.metric(part.ops, "vllm:request_generation_tokens_sum") == BODY["max_tokens"]
            for part in frontends
        )
