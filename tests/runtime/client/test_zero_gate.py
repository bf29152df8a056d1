import asyncio

import pytest

from kvasir.client import zero_gate as gate_module
from kvasir.client.zero_gate import ZeroGate
from kvasir_contract.endpoints import GATE_SECONDS
from kvasir_contract.status_report import ReportedDemand
from runtime.client.held import ask, finish, held, leave, soon
from runtime.client.scripted_engine import PATIENCE
from runtime.client.service import HOLDS_NONE, Service
from runtime.fake_clock import FakeClock


class Opened:
    def __init__(self) -> None:
        self.times = 0
        self.event = asyncio.Event()

    def __call__(self) -> None:
        self.times += 1
        self.event.set()


@pytest.fixture
def opened() -> Opened:
    return Opened()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def gate(opened: Opened, clock: FakeClock) -> ZeroGate:
    return ZeroGate(opened, can_hold=True, clock=clock)


async def test_a_gate_opens_again(gate: ZeroGate, opened: Opened) -> None:
    gate.close()
    assert gate.closed
    gate.open()
    gate.open()
    assert (gate.closed, opened.times) == (False, 1)


async def test_a_gate_stays_open_while_a_request_is_live(gate: ZeroGate) -> None:
    gate.arrived()
    gate.arrived()
    gate.left()
    gate.close()
    assert not gate.closed
    gate.left()
    gate.close()
    assert gate.closed


async def test_a_gate_stays_open_if_requests_cannot_be_held(opened: Opened) -> None:
    gate = ZeroGate(opened, can_hold=False)
    gate.close()
    assert (gate.report().gate_closed, gate.report().can_hold) == (False, False)


async def test_a_gate_opens_by_itself(monkeypatch: pytest.MonkeyPatch, gate: ZeroGate, opened: Opened) -> None:
    assert GATE_SECONDS == 10
    monkeypatch.setattr(gate_module, "GATE_SECONDS", 0.01)
    gate.close()
    async with asyncio.timeout(PATIENCE):
        await opened.event.wait()
    assert not gate.closed


async def test_closed_gate_is_closed_for_longer_only_while_it_is_idle(
    monkeypatch: pytest.MonkeyPatch, gate: ZeroGate
) -> None:
    gate.close()
    first = gate._timer
    gate.close()
    second = gate._timer
    assert first is not None
    assert second is not None
    assert first.cancelled()
    gate.arrived()  # it is held, and must not be delayed further
    gate.close()
    assert gate._timer is second
    assert not second.cancelled()
    gate.open()


def test_report_has_times_of_the_last_request_and_the_engines(gate: ZeroGate, clock: FakeClock) -> None:
    clock.now = 5.0
    assert gate.report() == ReportedDemand(gate_closed=False, request_seconds=None, engine_seconds=None)
    gate.engines_changed(usable=True)
    clock.now = 10.0
    gate.engines_changed(usable=True)
    gate.arrived()
    clock.now = 20.0
    assert gate.report() == ReportedDemand(gate_closed=False, request_seconds=0.0, engine_seconds=15.0)
    gate.left()
    gate.engines_changed(usable=False)
    clock.now = 23.0
    assert gate.report() == ReportedDemand(gate_closed=False, request_seconds=3.0, engine_seconds=None)


async def test_frontend_accepts_with_an_engine_or_a_closed_gate(opened: Opened) -> None:
    one, other = ZeroGate(opened, can_hold=True), ZeroGate(opened, can_hold=True)
    one.engines_changed(usable=False)
    assert not one.accepts
    one.engines_changed(usable=True)
    one.engines_changed(usable=False)
    assert one.accepts
    other.close()
    other.open()
    assert other.accepts


def test_busy_is_set_while_a_request_is_live(gate: ZeroGate) -> None:
    assert not gate.busy.is_set()
    gate.arrived()
    gate.arrived()
    gate.left()
    assert gate.busy.is_set()
    gate.left()
    assert not gate.busy.is_set()


# ----------------------------------------------------------------------------------------- with engines on the link


async def test_a_request_behind_a_closed_gate_is_held_and_then_sent(service: Service) -> None:
    engine = await service.engine()
    service.llm.gate.close()
    (reader,) = await held(service, "r")
    assert engine.messages() == []
    service.llm.gate.open()
    await finish(engine, await engine.request())
    await soon(reader)
    assert service.llm.gate.report().request_seconds is not None
    assert not service.llm.gate.busy.is_set()


async def test_request_behind_a_gate_goes_to_the_next_engine(service: Service) -> None:
    """The engines are removed although the gate is closed for a moment longer."""
    first = await service.engine()
    service.llm.gate.close()
    (reader,) = await held(service, "r")
    first.close()
    await service.until(lambda: not service.llm.engines)
    assert service.llm.gate.report().engine_seconds is None
    service.llm.gate.open()
    second = await service.engine()
    await finish(second, await second.request())
    await soon(reader)


@HOLDS_NONE
async def test_without_holding_the_gate_stays_open(service: Service) -> None:
    engine = await service.engine()
    service.llm.gate.close()
    reader = ask(service, "r")
    await finish(engine, await engine.request())
    await soon(reader)


async def test_a_request_whose_client_leaves_is_not_live(service: Service) -> None:
    (reader,) = await held(service, "r")
    assert service.llm.gate.busy.is_set()
    await leave([reader])
    assert not service.llm.gate.busy.is_set()
    assert service.llm.gate.report().request_seconds is not None
