"""Two real engines: one computes a prompt, the other one fetches its KV blocks and gives the same answer."""

import httpx

from service.running import Service

PROMPT = " ".join(f"Engine {number} of the service has its own copy of the model." for number in range(40))


def test_an_engine_fetches_what_another_one_has_computed(service: Service) -> None:
    def ask(rank: int, prompt: str = PROMPT) -> tuple[str, int]:
        body = {"model": "demo", "prompt": prompt, "max_tokens": 12, "temperature": 0, "data_parallel_rank": rank}
        answer = httpx.post(f"{service.url}/v1/completions", json=body, timeout=60).raise_for_status().json()
        return answer["choices"][0]["text"], answer["usage"]["prompt_tokens"]

    def count(rank: int, name: str) -> float:
        return service.metric(service.engines()[rank].ops, f"kvasir:{name}_total")

    def fetched() -> list[float]:
        return [count(rank, "kv_blocks_fetched") - before[rank] for rank in (0, 1)]

    before = [count(rank, "kv_blocks_fetched") for rank in (0, 1)]  # by other tests of this service
    failed = count(1, "kv_fetches_failed")
    computed, num_tokens = ask(0)
    assert num_tokens > 400
    assert ask(0) == (computed, num_tokens)  # the reports of the first request come before this answer
    for _ in range(2):
        assert ask(1) == (computed, num_tokens)
        assert fetched() == [0, (num_tokens - 1) // 16]
    ask(1, "A short prompt is computed.")
    assert fetched() == [0, (num_tokens - 1) // 16]
    assert count(1, "kv_fetches_failed") == failed
