"""A reset of the prefix cache goes through frontend, link and engines, and is seen in the metrics.

The admin key comes from a Secret of the manifest.
"""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from service.running import ROOT, Service, running

PROMPT = "What is a pod, and what is it not? " * 8
KEY = "an-admin-key"


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running("up", str(_with_admin_key(tmp_path_factory.mktemp("manifest"))), "--port", "0") as service:
        yield service


def test_a_reset_makes_every_rank_forget_its_cache(controlled: Service) -> None:
    with httpx.Client(base_url=controlled.url, timeout=60) as client:

        def cached() -> int:
            body = {"model": "demo", "prompt": PROMPT, "max_tokens": 1}
            usage = client.post("/v1/completions", json=body).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        # Enough for both ranks, whichever takes which.
        assert max(cached() for _ in range(4)) > 0
        for refused in ({}, {"authorization": "Bearer other"}):
            assert client.post("/reset_prefix_cache", headers=refused).status_code == 401
        assert max(cached() for _ in range(4)) > 0
        hits = controlled.metric(controlled.url, "vllm:prefix_cache_hits_total")
        answer = client.post("/reset_prefix_cache", headers={"authorization": f"Bearer {KEY}"})
        assert answer.status_code == 200, answer.text
        assert sorted(engine["rank"] for engine in answer.json()["engines"]) == [0, 1]
        assert cached() == 0
        assert controlled.metric(controlled.url, "vllm:prefix_cache_hits_total") == hits > 0


def _with_admin_key(directory: Path) -> Path:
    service = yaml.safe_load((ROOT / "manifests/examples/demo.yaml").read_text())
    service["spec"]["frontend"] = {"adminApiKeys": {"name": "admins"}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "admins"}, "stringData": {"key": KEY}}
    manifest = directory / "service.yaml"
    manifest.write_text(yaml.safe_dump_all([service, secret]))
    return manifest
