"""Two real engines: one computes a prompt, the other one fetches its KV blocks and gives the same answer."""

import httpx

from service.running import running

PROMPT = " ".join(f"Engine {number} of the service has its own copy of the model." for number in range(40))


def test_an_engine_fetches_what_another_one_has_computed() -> None:
    with running("up", "manifests/examples/demo.yaml", "--port", "0") as service:

        def ask(rank: int, prompt: str = PROMPT) -> tuple[str, int]:
            body = {
                "model": "demo",
                "prompt": prompt,
                "max_tokens": 12,
                "temperature": 0,
                "data_parallel_rank": rank,
            }
            answer = httpx.post(f"{service.url}/v1/completions", json=body, timeout=60).raise_for_status().json()
            return answer["choices"][0]["text"], answer["usage"]["prompt_tokens"]

        def fetched(rank: int) -> float:
            return service.metric(service.engines()[rank].ops, "kvasir:kv_blocks_fetched_total")

        computed, num_tokens = ask(0)
        assert num_tokens > 400
        assert ask(0) == (computed, num_tokens)  # the reports of the first request come before this answer
        assert ask(1) == (computed, num_tokens)
        assert fetched(0) == 0
        assert fetched(1) == (num_tokens - 1) // 16
        assert ask(1) == (computed, num_tokens)
        assert fetched(1) == (num_tokens - 1) // 16
        ask(1, "A short prompt is computed.")
        assert fetched(1) == (num_tokens - 1) // 16
        assert service.metric(service.engines()[1].ops, "kvasir:kv_fetches_failed_total") == 0
