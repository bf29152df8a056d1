import asyncio

import pytest

from kvasir.client.calls import Calls
from kvasir.link.frontend_end.remote_engine import EngineState, RemoteEngine
from kvasir.link.protocol import Call, Result

METHOD = "reset_prefix_cache"
LONG = 30.0


def engine(rank: int) -> RemoteEngine:
    return RemoteEngine(f"engine-{rank}", rank, "node", EngineState.READY, None, last_seen=0.0)


class Peers:
    """Records the messages sent; engines named in `gone` cannot be reached."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Call]] = []
        self.gone: set[str] = set()
        self.calls = Calls(self._send)

    def _send(self, incarnation: str, call: Call) -> bool:
        if incarnation in self.gone:
            # As the link does: the loss is an event of the next turn.
            asyncio.get_running_loop().call_soon(self.calls.lost, incarnation, "its connection broke")
            return False
        self.sent.append((incarnation, call))
        return True

    async def start(self, *ranks: int, seconds: float = LONG) -> "asyncio.Task[list[tuple[int, str]]]":
        async def call() -> list[tuple[int, str]]:
            outcomes = await self.calls.call([engine(rank) for rank in ranks], METHOD, seconds)
            return [(outcome.rank, outcome.error) for outcome in outcomes]

        task = asyncio.create_task(call())
        await asyncio.sleep(0)
        return task


async def test_each_engine_is_called_once_and_its_answer_returned() -> None:
    peers = Peers()
    task = await peers.start(0, 1)
    assert [(name, call.method) for name, call in peers.sent] == [("engine-0", METHOD), ("engine-1", METHOD)]
    for (name, call), error in reversed(list(zip(peers.sent, ("", "2 requests are running"), strict=True))):
        peers.calls.answered(name, Result(call.id, error))
    assert await task == [(0, ""), (1, "2 requests are running")]


async def test_an_answer_counts_only_from_the_engine_that_was_asked() -> None:
    peers = Peers()
    task = await peers.start(0, 1)
    (_, first), (_, second) = peers.sent
    peers.calls.answered("engine-1", Result(first.id))
    peers.calls.answered("engine-0", Result(999))
    assert not task.done()
    peers.calls.answered("engine-0", Result(first.id))
    peers.calls.answered("engine-1", Result(second.id, "no"))
    peers.calls.answered("engine-1", Result(second.id))
    assert await task == [(0, ""), (1, "no")]
    peers.calls.answered("engine-1", Result(second.id))


async def test_an_engine_that_is_lost_has_an_outcome_at_once() -> None:
    peers = Peers()
    peers.gone.add("engine-0")
    task = await peers.start(0, 1)
    peers.calls.lost("engine-1", "it was silent for 10 s")
    peers.calls.lost("engine-1", "again")
    assert await task == [(0, "it was lost: its connection broke"), (1, "it was lost: it was silent for 10 s")]


@pytest.mark.parametrize(("arguments", "is_sent"), [(b"", True), (b"\x90", False)])
async def test_call_sends_no_arguments_to_an_older_engine(arguments: bytes, is_sent: bool) -> None:
    peers, older = Peers(), engine(0)
    older.agreement.begin(1)
    [outcome] = await peers.calls.call([older], METHOD, 0.0, arguments)
    assert bool(peers.sent) is is_sent
    assert ("too old for reset_prefix_cache" in outcome.error) is not is_sent


async def test_call_returns_the_value_of_each_engine() -> None:
    peers = Peers()
    calling = asyncio.create_task(peers.calls.call([engine(0)], METHOD, LONG))
    await asyncio.sleep(0)
    peers.calls.answered("engine-0", Result(peers.sent[0][1].id, value=b"\x91\x01"))
    [outcome] = await calling
    assert (outcome.error, outcome.value) == ("", b"\x91\x01")


async def test_engine_that_does_not_answer_gets_an_error_in_time() -> None:
    peers = Peers()
    task = await peers.start(0, 1, seconds=0.01)
    peers.calls.answered("engine-0", Result(peers.sent[0][1].id))
    (first, second) = await task
    assert first == (0, "")
    assert "did not answer within 0.01 s" in second[1]


async def test_a_caller_that_leaves_leaves_nothing() -> None:
    peers = Peers()
    task = await peers.start(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    peers.calls.answered("engine-0", Result(peers.sent[0][1].id))
    assert peers.calls._waiting == {}
