import asyncio
import json

import httpx
import pytest

from kvasir.batch import delivery
from kvasir.batch.batch_input import BatchRequest, parse_line
from kvasir.batch.batch_output import BatchResponse
from kvasir.batch.delivery import BatchDelivery, KeyRefused, NotDelivered, Patience
from runtime.batch.batch_lines import line

REQUEST: BatchRequest = parse_line(line().encode())
GOOD = httpx.Response(200, json={"x": 1}, headers={"X-Request-Id": "r7"})


class Clock:
    """Time that passes only while the delivery sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pauses: list[float] = []
        monkeypatch.setattr(delivery, "monotonic", lambda: sum(self.pauses))
        monkeypatch.setattr(delivery, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def deliver(*answers: httpx.Response | Exception, retry: float = 600) -> BatchResponse:
    left = list(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        assert json.loads(request.content) == {"prompt": "x"}
        each = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(each, Exception):
            raise each
        return httpx.Response(each.status_code, headers=each.headers, content=each.content)

    async def run() -> BatchResponse:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://server") as http:
            return await BatchDelivery(http, Patience(retry)).deliver(REQUEST)

    return asyncio.run(run())


def test_the_answer_of_the_server_is_the_result(clock: Clock) -> None:
    result = deliver(GOOD)
    assert (result.status_code, result.request_id, bytes(result.body)) == (200, "r7", b'{"x":1}')
    assert clock.pauses == []


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_refused_request_is_not_repeated(clock: Clock, status: int) -> None:
    assert deliver(httpx.Response(status, json={}), GOOD).status_code == status
    assert clock.pauses == []


@pytest.mark.parametrize("problem", [httpx.Response(429), httpx.Response(503), httpx.ConnectError("refused")])
def test_a_busy_or_unreachable_server_is_asked_again(clock: Clock, problem: httpx.Response | Exception) -> None:
    assert deliver(problem, problem, problem, GOOD).status_code == 200
    assert clock.pauses == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("header", "pause"),
    [("7", 7.0), ("0", 0.5), ("99999", 300.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.5), ("-1", 0.5)],
)
def test_the_server_says_when_to_come_back(clock: Clock, header: str, pause: float) -> None:
    deliver(httpx.Response(503, headers={"Retry-After": header}), GOOD)
    assert clock.pauses == [pause]


def test_pauses_grow_up_to_a_limit_and_end_in_time(clock: Clock) -> None:
    with pytest.raises(NotDelivered, match="429: no room") as caught:
        deliver(httpx.Response(429, json={"error": {"message": "no room"}}), retry=120)
    assert caught.value.reached
    assert clock.pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_an_unreachable_server_is_given_up_as_such(clock: Clock) -> None:
    with pytest.raises(NotDelivered, match="refused") as caught:
        deliver(httpx.ConnectError("refused"), retry=0)
    assert not caught.value.reached


def test_an_internal_error_is_the_result_of_the_third_attempt(clock: Clock) -> None:
    assert deliver(httpx.Response(500), GOOD).status_code == 200
    assert deliver(httpx.Response(500, json={}), httpx.Response(503), httpx.Response(502), GOOD).status_code == 200
    clock.pauses.clear()
    assert deliver(httpx.Response(500, json={"why": 1})).status_code == 500
    assert len(clock.pauses) == 2


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_no_result(clock: Clock, status: int) -> None:
    with pytest.raises(KeyRefused, match=f"{status}: wrong key"):
        deliver(httpx.Response(status, json={"error": {"message": "wrong key"}}))


@pytest.mark.parametrize(
    ("content", "body"),
    [
        (b'{\n "a": [1,\n 2.50]\n}', b'{"a":[1,2.50]}'),
        (b"<html>\nlog in</html>", b'"<html>\\nlog in</html>"'),
        (b"\xff", '"\ufffd"'.encode()),
        (b"", b'""'),
    ],
)
def test_the_body_becomes_one_line_of_json(clock: Clock, content: bytes, body: bytes) -> None:
    assert bytes(deliver(httpx.Response(200, content=content)).body) == body
