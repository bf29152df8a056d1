"""A reset of the prefix cache goes through frontend, link and engines, and is seen in the metrics.

The admin key comes from a Secret of the manifest.
"""

import httpx

from service.conftest import ADMIN_KEY
from service.running import Service

PROMPT = "What is a pod, and what is it not? " * 8


def test_a_reset_makes_every_rank_forget_its_cache(service: Service) -> None:
    with httpx.Client(base_url=service.url, timeout=60) as client:

        def cached() -> int:
            body = {"model": "demo", "prompt": PROMPT, "max_tokens": 1}
            usage = client.post("/v1/completions", json=body).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        # Enough for both ranks, whichever takes which.
        assert max(cached() for _ in range(4)) > 0
        for refused in ({}, {"authorization": "Bearer other"}):
            assert client.post("/reset_prefix_cache", headers=refused).status_code == 401
        assert max(cached() for _ in range(4)) > 0
        hits = service.metric(service.url, "vllm:prefix_cache_hits_total")
        answer = client.post("/reset_prefix_cache", headers={"authorization": f"Bearer {ADMIN_KEY}"})
        assert answer.status_code == 200, answer.text
        assert sorted(engine["rank"] for engine in answer.json()["engines"]) == [0, 1]
        assert cached() == 0
        assert service.metric(service.url, "vllm:prefix_cache_hits_total") == hits > 0
