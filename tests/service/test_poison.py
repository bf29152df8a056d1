"""A request that kills its engine takes two of three engines with it, and the requests of others are answered."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from service.poison_plugin import POISON_TOKEN, deaths, install
from service.running import running

CLIENTS = 6
TIMEOUT = 90.0


def ask(url: str, prompt: str | list[int]) -> httpx.Response:
    body = {"model": "demo", "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=TIMEOUT)


def test_poison_is_refused_after_two_engines_alone(tmp_path: Path) -> None:
    options = ("--served-model-name", "demo", "--worker-cls", "poisoned", "--threads", "1")
    with running("serve", "demo://", "--port", "0", "-dp", "3", *options, env=install(tmp_path)) as service:
        prompts = [f"Pod {n} is" for n in range(CLIENTS)]
        undisturbed = [ask(service.url, prompt).json()["choices"][0]["text"] for prompt in prompts]
        refused = threading.Event()

        def work(n: int) -> int:
            count = 0
            while not refused.is_set() or count < 3:
                response = ask(service.url, prompts[n])
                assert response.status_code == 200, response.text
                assert response.json()["choices"][0]["text"] == undisturbed[n]
                count += 1
            return count

        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(work, n) for n in range(CLIENTS)]
            try:
                response = ask(service.url, [5, POISON_TOKEN, 6])
                # Again, as a client that does not give up.
                repeated = ask(service.url, [5, POISON_TOKEN, 6])
            finally:
                refused.set()
            assert all(client.result() for client in clients)
        for answer in (response, repeated):
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_failed_repeatedly")
        killed = deaths(tmp_path)
        assert len(killed) == 2
        assert killed[1] == []  # alone on its second engine
