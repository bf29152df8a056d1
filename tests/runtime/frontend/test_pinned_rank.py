from typing import Any

import httpx
import pytest

from runtime.frontend.harness import Frontend, running_frontend

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": ["Hi", "Ho"], "n": 2},
}
HEADER_ONLY: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
}
"""Endpoints that take the header, and have no field."""
HEADER = "X-data-parallel-rank"


def counts(frontend: Frontend) -> list[int]:
    return [len(engine.seen.requests) for engine in frontend.engines]


async def post(frontend: Frontend, path: str, fields: dict[str, Any], **headers: str) -> httpx.Response:
    async with frontend.http(**headers) as client:
        return await client.post(path, json=(BODIES | HEADER_ONLY)[path] | fields)


@pytest.mark.parametrize(("path", "requests"), [("/v1/chat/completions", 1), ("/v1/completions", 4)])
@pytest.mark.parametrize(
    ("fields", "headers"),
    [({"data_parallel_rank": 1}, {}), ({}, {HEADER: "1"}), ({"data_parallel_rank": 1}, {HEADER.upper(): "1"})],
    ids=["field", "header", "both"],
)
async def test_all_choices_go_to_the_rank(
    frontend: Frontend, path: str, requests: int, fields: dict[str, Any], headers: dict[str, str]
) -> None:
    await frontend.add_engine()
    await frontend.add_engine()
    for _ in range(2):
        response = await post(frontend, path, fields, **headers)
        assert response.status_code == 200, response.text
    assert counts(frontend) == [0, 2 * requests, 0]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", HEADER_ONLY)
async def test_the_header_chooses_the_rank_without_the_field(frontend: Frontend, path: str, stream: bool) -> None:
    await frontend.add_engine()
    await frontend.add_engine()
    for _ in range(2):
        response = await post(frontend, path, {"stream": stream}, **{HEADER: "1"})
        assert response.status_code == 200, response.text
    assert counts(frontend) == [0, 2, 0]


@pytest.mark.parametrize(("header", "reason"), [("one", "is not a rank"), ("2", "ranks 0, 1")])
@pytest.mark.parametrize("path", HEADER_ONLY)
async def test_a_wrong_header_is_a_bad_request_without_the_field(
    frontend: Frontend, path: str, header: str, reason: str
) -> None:
    await frontend.add_engine()
    response = await post(frontend, path, {}, **{HEADER: header})
    assert response.status_code == 400
    assert reason in response.json()["error"]["message"]
    assert counts(frontend) == [0, 0]


@pytest.mark.parametrize("path", BODIES)
async def test_an_unknown_rank_is_a_bad_request_that_names_the_ranks(frontend: Frontend, path: str) -> None:
    await frontend.add_engine()
    response = await post(frontend, path, {"data_parallel_rank": 2, "stream": True})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "data_parallel_rank")
    assert "ranks 0, 1" in error["message"]
    assert counts(frontend) == [0, 0]


@pytest.mark.parametrize("path", BODIES)
async def test_a_rank_that_is_not_ready_is_unavailable(path: str) -> None:
    async with running_frontend(hold_timeout=0.0) as frontend:
        await frontend.add_engine(ready=False)
        response = await post(frontend, path, {"data_parallel_rank": 1})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_unavailable")
        assert int(response.headers["retry-after"]) >= 1
        assert counts(frontend) == [0, 0]


@pytest.mark.parametrize(
    ("fields", "header", "reason"),
    [
        ({}, "one", "is not a rank"),
        ({}, "-1", "is not a rank"),
        ({}, "", "is not a rank"),
        ({}, "9" * 30, "is not a rank"),
        ({"data_parallel_rank": 0}, "1", "is 0 and the header X-data-parallel-rank is 1"),
        ({"data_parallel_rank": -1}, None, ">= 0"),
        ({"data_parallel_rank": "0"}, None, "an integer"),
    ],
)
async def test_a_rank_that_cannot_be_read_is_a_bad_request(
    frontend: Frontend, fields: dict[str, Any], header: str | None, reason: str
) -> None:
    headers = {} if header is None else {HEADER: header}
    response = await post(frontend, "/v1/completions", fields, **headers)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "data_parallel_rank")
    assert reason in error["message"]
    assert counts(frontend) == [0]
