"""A request that an engine refuses gets the status of the refusal, not 500."""

from typing import Any

import pytest

from kvasir.client.request_errors import failed_repeatedly
from kvasir.frontend.errors import as_api_error
from kvasir.link.protocol import RefusalKind
from runtime.frontend.harness import running_frontend

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("refusal", "status", "type_", "code", "retry_after"),
    [
        (RefusalKind.INVALID, 400, "invalid_request_error", None, None),
        (RefusalKind.UNAVAILABLE, 503, "server_error", "engine_unavailable", "1"),
        (RefusalKind.UNKNOWN, 500, "server_error", "request_failed", None),
    ],
)
async def test_a_refusal_before_the_first_token_has_its_own_status(
    path: str,
    stream: bool,
    refusal: RefusalKind,
    status: int,
    type_: str,
    code: str | None,
    retry_after: str | None,
) -> None:
    async with running_frontend(hold_timeout=0.0) as frontend, frontend.http() as client:
        script = frontend.engine.script
        script.answer, script.error, script.refusal = [], "the engine refuses it: send another one", refusal
        response = await client.post(path, json={"stream": stream, **BODIES[path]})
        await frontend.idle()
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["code"]) == (status, type_, code)
    assert error["message"] == "the engine refuses it: send another one"
    assert response.headers.get("retry-after") == retry_after
    await frontend.idle()


def test_request_that_failed_its_engines_has_its_own_code() -> None:
    error = as_api_error(failed_repeatedly(2), "id")
    assert (error.status, error.code) == (500, "engine_failed_repeatedly")
