import pytest

from kvasir.frontend.request_bodies import request_body
from kvasir.process.seldom_log import SeldomLog
from runtime.frontend.harness import Frontend, running_frontend

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_unknown_fields_are_ignored_and_logged_once(
    path: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in vLLM: clients send fields of other servers."""
    monkeypatch.setattr(request_body, "log", SeldomLog(request_body.log._log))
    body = {"prompt": "Hi"} if path == COMPLETIONS else {"messages": [{**USER, "mood": "bad"}]}
    async with running_frontend() as frontend, frontend.http() as client:
        answers = [await client.post(path, json={"max_tokens": 1, "max_token": 5, **body}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert sum("'max_token'" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_unknown_fields_are_rejected_if_the_server_is_strict(path: str) -> None:
    async with running_frontend(strict_fields=True) as frontend, frontend.http() as client:
        response = await client.post(path, json={"max_token": 5})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "max_token"
    assert "did you mean max_tokens?" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_name_of_megabytes_is_refused_without_a_suggestion(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("difflib.get_close_matches", lambda *args, **kwargs: pytest.fail("looked"))
    name = "max_token" * 500_000
    async with running_frontend(strict_fields=True) as frontend, frontend.http() as client:
        response = await client.post(path, json={name: 5})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name


async def test_integers_may_be_written_as_floats(frontend: Frontend) -> None:
    async with frontend.http() as client:
        response = await client.post(COMPLETIONS, json={"prompt": "Hi", "max_tokens": 2.0, "n": 1.0})
    assert response.json()["usage"]["completion_tokens"] == 2
