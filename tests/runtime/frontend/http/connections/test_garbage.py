import gc
import weakref
from collections.abc import Iterator

import pytest

from runtime.frontend.harness import Frontend
from runtime.frontend.http.connections.test_slow_clients import connection_of

CHAT: dict[str, object] = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", {"prompt": "Hi"}, 200),
        ("/v1/completions", {"prompt": "Hi", "stream": True}, 200),
        ("/v1/completions", {"prompt": ["Hi", "Ho"], "stream": True}, 200),
        ("/v1/chat/completions", CHAT, 200),
        ("/v1/chat/completions", CHAT | {"stream": True}, 200),
        ("/v1/completions", {"prompt": "Hi", "n": "two"}, 400),
        ("/v1/completions", {"prompt": "Hi", "stop": ""}, 400),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 10**6}, 400),
        ("/v1/completions", {"prompt": "Hi", "model": "other"}, 404),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_request_leaves_no_reference_cycle(
    frontend: Frontend, path: str, body: dict[str, object], status: int
) -> None:
    async with frontend.http() as client:
        await client.get("/version")
        assert (await client.post(path, json=body)).status_code == status
        record = weakref.ref(connection_of(frontend).cycle.scope["state"]["record"])
        assert record() is not None
        await client.get("/version")  # the connection keeps its last request
        assert record() is None
