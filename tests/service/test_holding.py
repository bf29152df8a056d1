import os
import signal
import threading

import httpx

from service.running import Service, running

BODY = {"prompt": "What is", "max_tokens": 8, "temperature": 0}


def test_requests_without_an_engine_are_answered_by_the_next_one() -> None:
    with running("serve", "demo://", "--port", "0") as service:
        undisturbed = _text(service)
        (engine,) = service.engines()
        os.kill(engine.pid, signal.SIGKILL)
        while httpx.get(f"{service.url}/health").status_code == 200:
            pass
        answers: list[str] = []
        threads = [threading.Thread(target=lambda: answers.append(_text(service))) for _ in range(20)]
        for thread in threads:
            thread.start()
        with httpx.stream(
            "POST", f"{service.url}/v1/completions", json=BODY | {"stream": True}, timeout=300
        ) as held:
            assert held.status_code == 200
            text = held.read().decode()
        for thread in threads:
            thread.join()
        held_count = service.metric(service.url, "kvasir:request_held_seconds_count")
    assert answers == [undisturbed] * 20
    assert text.endswith("data: [DONE]\n\n")
    assert held_count >= 1


def _text(service: Service) -> str:
    response = httpx.post(f"{service.url}/v1/completions", json=BODY, timeout=300)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])
