import asyncio
import http.client
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest

import operator_facts
from kvasir.config.process_settings import OpsConfig
from kvasir.frontend import status as status_module
from kvasir.frontend.status import FrontendStatus
from kvasir.process import ops_server
from kvasir.process.ops_server import OpsServer
from kvasir_contract.endpoints import MAX_DEMAND_WAIT_SECONDS
from kvasir_contract.phases import Phase
from kvasir_contract.status_report import ReportedDemand, StatusReport
from kvasir_operator.observe.status_reports import StatusReports
from kvasir_operator.plan.zero import has_demand
from runtime.frontend.harness import ANSWER, Frontend, eventually, running_frontend

BODY = {"prompt": "What is"}


@asynccontextmanager
async def with_ops(*, engine: bool = True) -> AsyncIterator[tuple[Frontend, OpsServer]]:
    async with running_frontend(engine=engine) as frontend:
        status = frontend.status
        with closing(OpsServer(OpsConfig(ops_port=0), status, status.metrics, status)) as ops:
            yield frontend, ops


def call(ops: OpsServer, method: str, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", ops.port, timeout=60)
    with closing(connection):
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()


async def report(ops: OpsServer, method: str, path: str) -> StatusReport:
    """Call from a thread, because the event loop of this test is the frontend's."""
    code, body = await asyncio.to_thread(call, ops, method, path)
    assert code == 200, body
    return StatusReport.from_json(body)


async def demand(ops: OpsServer, method: str, path: str) -> ReportedDemand:
    found = (await report(ops, method, path)).demand
    assert found is not None
    return found


async def until_live(frontend: Frontend) -> None:
    async def is_live() -> bool:
        return frontend.service.llm.live_requests == 1

    await eventually(is_live)


async def until_computing(frontend: Frontend) -> None:
    async def is_computing() -> bool:
        return bool(frontend.engine.seen.requests)

    await eventually(is_computing)


async def test_the_operator_closes_and_opens_the_gate() -> None:
    async with with_ops() as (frontend, ops), frontend.http() as client:
        closed = await demand(ops, "POST", "/gate/close")
        assert closed.gate_closed
        assert closed.request_seconds is None
        assert closed.engine_seconds is not None
        waiting = asyncio.create_task(client.post("/v1/completions", json=BODY))
        await until_live(frontend)
        assert frontend.engine.seen.requests == []
        held = await report(ops, "GET", "/status")
        assert held.demand is not None
        assert (held.live_requests, held.demand.request_seconds, held.demand.gate_closed) == (1, 0.0, True)
        assert not (await demand(ops, "POST", "/gate/open")).gate_closed
        assert (await waiting).json()["choices"][0]["text"] == ANSWER


async def test_the_gate_does_not_close_before_a_live_request() -> None:
    async with with_ops() as (frontend, ops), frontend.http() as client:
        frontend.engine.script.pause_at = 1
        waiting = asyncio.create_task(client.post("/v1/completions", json=BODY))
        await until_computing(frontend)
        refused = await report(ops, "POST", "/gate/close")
        assert refused.demand is not None
        assert (refused.live_requests, refused.demand.gate_closed) == (1, False)
        frontend.engine.resume()
        assert (await waiting).status_code == 200


async def test_demand_is_answered_when_a_request_comes() -> None:
    async with with_ops(engine=False) as (frontend, ops), frontend.http() as client:
        poll = asyncio.create_task(report(ops, "GET", f"/demand?timeout={MAX_DEMAND_WAIT_SECONDS:g}"))
        waiting = asyncio.create_task(client.post("/v1/completions", json=BODY))
        assert (await poll).live_requests == 1
        assert (await report(ops, "GET", "/demand?timeout=25")).live_requests == 1  # at once
        await frontend.add_engine()
        assert (await waiting).status_code == 200


async def test_demand_is_answered_after_its_timeout() -> None:
    async with with_ops(engine=False) as (_, ops):
        found = await report(ops, "GET", "/demand?timeout=0.05")
        assert (found.live_requests, found.demand) == (0, ReportedDemand(False, None, None))


@pytest.mark.parametrize("query", ["", "?timeout=", "?timeout=-1", "?timeout=26", "?timeout=nan", "?since=1"])
async def test_demand_refuses_other_times(query: str) -> None:
    async with with_ops(engine=False) as (_, ops):
        code, body = await asyncio.to_thread(call, ops, "GET", f"/demand{query}")
        assert code == 400
        assert b"timeout" in body


async def test_only_so_many_callers_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops_server, "MAX_WAITERS", 1)
    async with with_ops(engine=False) as (frontend, ops), frontend.http() as client:
        codes: list[int] = []

        async def wait() -> None:
            codes.append((await asyncio.to_thread(call, ops, "GET", "/demand?timeout=25"))[0])

        polls = [asyncio.create_task(wait()) for _ in range(2)]
        await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
        assert codes == [200]  # answered without a wait
        assert not all(poll.done() for poll in polls)
        waiting = asyncio.create_task(client.post("/v1/completions", json=BODY))
        await asyncio.gather(*polls)
        assert codes == [200, 200]
        assert (await asyncio.to_thread(call, ops, "GET", "/demand?timeout=0"))[0] == 200
        waiting.cancel()


async def test_a_frontend_at_zero_is_ready() -> None:
    """It started without engines, and the operator starts them when requests come."""
    async with with_ops(engine=False) as (frontend, ops):
        assert frontend.status.unready_reason() == "no engine has been ready yet"
        assert (await report(ops, "POST", "/gate/close")).phase is Phase.READY
        assert (await report(ops, "POST", "/gate/open")).phase is Phase.READY
        assert frontend.status.unready_reason() is None


async def test_a_busy_event_loop_does_not_close_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_module, "GATE_PATIENCE_SECONDS", 0.05)
    async with with_ops() as (frontend, ops):
        assert call(ops, "POST", "/gate/close")[0] == 503  # this call blocks the event loop
        frontend.service.llm.gate.open()


async def test_a_frontend_that_starts_closes_no_gate() -> None:
    status = FrontendStatus()
    with closing(OpsServer(OpsConfig(ops_port=0), status, status.metrics, status)) as ops:
        assert call(ops, "POST", "/gate/close")[0] == 503
        code, body = call(ops, "GET", "/demand?timeout=0")
        assert (code, StatusReport.from_json(body).demand) == (200, None)


async def test_other_processes_have_no_gate() -> None:
    status = FrontendStatus()
    with closing(OpsServer(OpsConfig(ops_port=0), status, status.metrics)) as ops:
        assert call(ops, "POST", "/gate/close")[0] == 404
        assert call(ops, "GET", "/demand?timeout=0")[0] == 404


async def test_pages_have_one_method() -> None:
    async with with_ops(engine=False) as (_, ops):
        assert (await asyncio.to_thread(call, ops, "GET", "/gate/close"))[0] == 404
        assert (await asyncio.to_thread(call, ops, "POST", "/status"))[0] == 404


async def test_the_operators_requests_fit_these_pages() -> None:
    async with with_ops() as (frontend, ops), frontend.http() as client:
        reports, pod = StatusReports(ops.port), operator_facts.pod("demo-frontend-a", "frontend", ip="127.0.0.1")
        try:
            await reports.set_gates({pod: True})
            found = (await reports.of([pod]))[pod.uid]
            assert found.demand is not None
            assert found.demand.gate_closed
            poll = asyncio.create_task(reports.wait_for_demand(pod))
            waiting = asyncio.create_task(client.post("/v1/completions", json=BODY))
            assert has_demand(await poll, seconds=60.0)
            assert frontend.engine.seen.requests == []
            await reports.set_gates({pod: False})
            assert (await waiting).status_code == 200
        finally:
            await reports.close()
