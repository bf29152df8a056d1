"""Endpoints of vLLM that Kvasir does not have are answered by name."""

import pytest

from kvasir.frontend.endpoints.missing import REASONS
from runtime.frontend.harness import Frontend, running_frontend


async def test_an_endpoint_that_is_missing_is_answered_with_the_reason(frontend: Frontend) -> None:
    async with frontend.http() as client:
        for path, reason in REASONS.items():
            for method in ("GET", "POST"):
                response = await client.request(method, path, json={})
                error = response.json()["error"]
                assert (response.status_code, error["code"]) == (404, "endpoint_not_supported"), path
                assert error["message"] == f"{path} is an endpoint of vLLM that Kvasir does not have: {reason}"


async def test_no_endpoint_is_listed_as_missing_that_is_there(frontend: Frontend) -> None:
    async with frontend.http() as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    assert not REASONS.keys() & paths.keys()


async def test_other_paths_are_unknown(frontend: Frontend) -> None:
    async with frontend.http() as client:
        response = await client.post("/v1/embedding", json={})
    assert response.json()["error"]["code"] == "unknown_url"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/tokenizer_info"])
async def test_they_need_a_key(path: str) -> None:
    async with running_frontend(api_key=("k",)) as frontend, frontend.http() as client:
        assert (await client.get(path)).status_code == 401
