import asyncio
from collections import Counter

import pytest

from kvasir.client.dispatch.assignment import START, WaveStarts
from kvasir.link.codec import CODEC, Agreement
from kvasir.link.frontend_end.remote_engine import EngineState, RemoteEngine
from kvasir.link.protocol import FEATURE_WAVES, AddRequest, FinishReason, Ready, StartWave
from runtime.client.service import Service


class Group:
    """Engines a, b and c of a group, and d, which runs alone; the messages that were sent to them."""

    def __init__(self) -> None:
        self.in_flight: Counter[str] = Counter()
        self.sent: list[str] = []
        self.engines = {name: engine(name, FEATURE_WAVES) for name in "abc"} | {"d": engine("d")}
        self._starts = WaveStarts(self.engines, self.in_flight.__getitem__, self._send)

    def request(self, name: str) -> list[str]:
        """Send a request to an engine; return the engines that were woken."""
        self.sent = []
        self.in_flight[name] += 1
        self._starts.request_sent(self.engines[name])
        return self.sent

    def _send(self, name: str, message: StartWave) -> bool:
        assert message == START
        self.sent.append(name)
        if self.engines[name].state is EngineState.LOST:  # as the link does
            del self.engines[name]
        return name in self.engines


def engine(name: str, *features: str) -> RemoteEngine:
    ready = Ready(16, 64, 128, 8, features)
    agreement = Agreement(CODEC, CODEC.version)
    return RemoteEngine(name, 0, "node", EngineState.READY, None, 0.0, capacity=ready, agreement=agreement)


def test_the_first_request_wakes_the_others_of_the_group() -> None:
    assert Group().request("b") == ["a", "c"]


def test_an_engine_that_runs_alone_wakes_no_other() -> None:
    assert Group().request("d") == []


@pytest.mark.parametrize("busy", ["a", "b", "c"])
def test_a_group_with_a_request_is_awake(busy: str) -> None:
    group = Group()
    group.in_flight[busy] = 1
    assert group.request("b") == []
    group.in_flight.clear()
    assert group.request("b") == ["a", "c"]


def test_requests_outside_the_group_do_not_keep_it_awake() -> None:
    group = Group()
    group.in_flight["d"] = 5
    assert group.request("a") == ["b", "c"]


def test_older_engines_and_those_not_ready_are_left_out() -> None:
    group = Group()
    group.engines["a"].agreement = Agreement(CODEC, 1)
    group.engines["b"].state = EngineState.DRAINING
    assert group.request("c") == []


def test_the_loss_of_an_engine_while_it_is_woken_does_no_harm() -> None:
    group = Group()
    lost = group.engines["a"]
    send = group._starts._send

    def lose(name: str, message: StartWave) -> object:
        lost.state = EngineState.LOST
        return send(name, message)

    group._starts._send = lose
    assert group.request("b") == ["a", "c"]
    assert list(group.engines) == ["b", "c", "d"]


async def test_the_frontend_wakes_a_group_over_the_link(service: Service) -> None:
    ready = Ready(16, 64, 128, 8, (FEATURE_WAVES,))
    engines = [service.connect(ready=ready, rank=rank) for rank in (0, 1)]
    alone = await service.engine(rank=2)
    await service.until(lambda: all(service.usable(engine) for engine in engines))
    prompted = service.llm.input.prepare([5], data_parallel_rank=0)
    reader = asyncio.create_task(anext(service.llm.generate("r", prompted)))
    request = await engines[0].request()
    assert isinstance(request, AddRequest)
    assert await engines[1].message() == START
    assert alone.messages() == engines[0].messages() == []
    engines[0].answer(request, 0, [5], FinishReason.STOP)
    await reader
