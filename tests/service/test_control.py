"""A reset of the prefix cache goes through frontend, link and engines, and is seen in the metrics."""

import httpx

from service.running import Service

PROMPT = "What is a pod, and what is it not? " * 8


def test_a_reset_makes_every_rank_forget_and_the_metrics_count_the_hits(service: Service) -> None:
    with httpx.Client(base_url=service.url, timeout=60) as client:

        def cached() -> int:
            body = {"model": "demo", "prompt": PROMPT, "max_tokens": 1}
            usage = client.post("/v1/completions", json=body).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        # Enough for both ranks, whichever takes which.
        assert max(cached() for _ in range(4)) > 0
        hits = service.metric(service.url, "vllm:prefix_cache_hits_total")
        answer = client.post("/reset_prefix_cache")
        assert answer.status_code == 200, answer.text
        assert sorted(engine["rank"] for engine in answer.json()["engines"]) == [0, 1]
        assert cached() == 0
        assert service.metric(service.url, "vllm:prefix_cache_hits_total") == hits > 0
