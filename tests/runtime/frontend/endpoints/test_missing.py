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
                anthropics = path.startswith("/v1/messages/")  # its errors have a type and no code
                kind = error["type"] if anthropics else error["code"]
                expected = "not_found_error" if anthropics else "endpoint_not_supported"
                assert (response.status_code, kind) == (404, expected), path
                assert error["message"] == f"{path} is an endpoint of vLLM that Kvasir does not have: {reason}"


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/responses/resp_1"), ("POST", "/v1/responses/resp_1/cancel"), ("DELETE", "/v1/responses/resp_1")],
)
async def test_a_stored_response_is_refused_with_the_reason(frontend: Frontend, method: str, path: str) -> None:
    async with frontend.http() as client:
        response = await client.request(method, path)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (404, "endpoint_not_supported")
    assert error["message"].startswith(
        f"{path} is an endpoint of vLLM that Kvasir does not have: this server stores"
    )


async def test_no_endpoint_is_listed_as_missing_that_is_there(frontend: Frontend) -> None:
    async with frontend.http() as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    assert not REASONS.keys() & paths.keys()


async def test_other_paths_are_unknown(frontend: Frontend) -> None:
    async with frontend.http() as client:
        response = await client.post("/v1/embedding", json={})
    assert response.json()["error"]["code"] == "unknown_url"


@pytest.mark.parametrize("path", ["/pause", "/tokenizer_info"])
async def test_they_need_a_key(path: str) -> None:
    async with running_frontend(api_key=("k",)) as frontend, frontend.http() as client:
        assert (await client.get(path)).status_code == 401
