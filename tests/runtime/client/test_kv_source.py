"""Which engine a moved request's KV blocks are fetched from."""

import pytest

from kvasir.link.protocol import FinishReason, Ready, RefusalKind
from runtime.client.scripted_engine import READY, ScriptedEngine
from runtime.client.service import Service
from runtime.client.test_migration import connected, give_back


def ready(numerics: str, kv_address: str) -> Ready:
    return Ready(READY.block_size, READY.num_blocks, 128, 8, numerics=numerics, kv_address=kv_address)


async def begin(service: Service, engine: ScriptedEngine) -> None:
    service.ask("r")
    request = await engine.request()
    assert request.kv_source == ""
    engine.answer(request, 0, [5])
    await service.until(lambda: service.observer.tokens == [1])


@pytest.mark.parametrize(
    ("numerics", "address", "expected"),
    [("a", "ipc:///kv/0", "ipc:///kv/0"), ("b", "ipc:///kv/0", ""), ("", "ipc:///kv/0", ""), ("a", "", "")],
)
async def test_a_request_that_is_given_back_names_its_engine(
    service: Service, numerics: str, address: str, expected: str
) -> None:
    """`numerics` and `address`: of the engine that had it."""
    first = await connected(service, 0, ready(numerics, address))
    service.ask("r")
    request = await first.request()
    first.answer(request, 0, [5])
    other = await connected(service, 1, ready("a", "ipc:///kv/1"))
    give_back(first, request, 1, RefusalKind.UNAVAILABLE)
    moved = await other.request()
    assert moved.kv_source == expected
    other.answer(moved, 1, [6], FinishReason.STOP)


async def test_a_request_of_a_lost_engine_names_no_engine(service: Service) -> None:
    first = await connected(service, 0, ready("a", "ipc:///kv/0"))
    await begin(service, first)
    other = await connected(service, 1, ready("a", "ipc:///kv/1"))
    first.die("out of memory")
    moved = await other.request()
    assert moved.kv_source == ""
    other.answer(moved, 1, [6], FinishReason.STOP)
