import asyncio

import pytest

from kvasir.client.async_llm import Delta
from kvasir.client.request_errors import FAILED_REPEATEDLY, RequestFailed
from kvasir.link.protocol import AddRequest, FailedStep, FinishReason, StepRequest
from kvasir.request.hashing import request_digest
from runtime.client.scripted_engine import ScriptedEngine
from runtime.client.service import MODEL, Service
from runtime.link.bare_peers import BareEngine, expect

POISON = "a poisonous prompt"


def failed(engine: str, *requests: AddRequest) -> FailedStep:
    return FailedStep(
        engine,
        tuple(
            StepRequest(request.request_id, request_digest(request.prompt_tokens, request.core))
            for request in requests
        ),
    )


async def fail(engine: ScriptedEngine, *ran: AddRequest) -> None:
    await asyncio.to_thread(engine.die, "a defect", failed(engine.identity.incarnation, *ran))


async def refused(reader: asyncio.Task[list[Delta]]) -> None:
    with pytest.raises(RequestFailed, match="2 engines failed") as error:
        await reader
    assert error.value.code == FAILED_REPEATEDLY


async def test_request_of_a_failed_step_runs_alone_and_is_then_refused(service: Service) -> None:
    first = await service.engine(0)
    reader = service.ask("poison", text=POISON)
    request = await first.request()
    assert not request.alone
    second = await service.engine(1)
    await fail(first, request)
    again = await second.request()
    assert again.alone
    third = await service.engine(2)
    await fail(second, again)
    await refused(reader)
    await refused(service.ask("repeated", text=POISON))  # sent after the failure was handled
    other = service.ask("other")
    served = await third.request()
    assert (served.request_id, served.alone) == ("other", False)
    third.answer(served, 0, [1], FinishReason.STOP)
    await other


async def test_request_that_waited_in_a_failed_engine_is_no_suspect(service: Service) -> None:
    first = await service.engine(0)
    readers = [service.ask("runs", text="one"), service.ask("waits", text="another")]
    requests = {request.request_id: request for request in [await first.request(), await first.request()]}
    second = await service.engine(1)
    await fail(first, requests["runs"])
    again = {request.request_id: request for request in [await second.request(), await second.request()]}
    assert {name: request.alone for name, request in again.items()} == {"runs": True, "waits": False}
    for request in again.values():
        second.answer(request, 0, [1], FinishReason.STOP)
    await asyncio.gather(*readers)


async def test_answer_ends_the_suspicion(service: Service) -> None:
    first = await service.engine(0)
    reader = service.ask("first", text="one")
    request = await first.request()
    second = await service.engine(1)
    await fail(first, request)
    for name, alone in (("first", True), ("second", False)):
        if name == "second":
            reader = service.ask(name, text="one")
        request = await second.request()
        assert (request.request_id, request.alone) == (name, alone)
        second.answer(request, 0, [1], FinishReason.STOP)
        await reader


async def bare(service: Service, rank: int) -> BareEngine:
    engine = BareEngine(service.llm.link_address, f"engine-{rank}-killed")
    changes = {"service": "", "fingerprint": MODEL.fingerprint, "tokenizer_hash": MODEL.tokenizer_hash}
    engine.introduce(rank=rank, **changes)
    engines = service.llm.engines
    await service.until(lambda: engine.incarnation in engines and engines[engine.incarnation].usable)
    return engine


async def after_two_kills(service: Service) -> tuple[asyncio.Task[list[Delta]], AddRequest]:
    """Kill two engines while they compute the poison; return its reader, and the request."""
    first = await bare(service, 0)
    reader = service.ask("poison", text=POISON)
    request = await expect(first, AddRequest)
    assert not request.alone
    second = await bare(service, 1)
    await asyncio.to_thread(first.close)
    again = await expect(second, AddRequest)
    assert again.alone
    await asyncio.to_thread(second.close)
    await service.until(lambda: not service.llm.engines)
    for _ in range(3):  # turns of the event loop: the dispatcher sends in the next one
        await asyncio.sleep(0)
    assert service.llm._dispatcher._unreported
    return reader, request


@pytest.mark.parametrize("guilty", [True, False])
async def test_third_attempt_waits_for_successors_of_killed_engines(service: Service, guilty: bool) -> None:
    reader, request = await after_two_kills(service)
    third = await service.engine(2)
    other = service.ask("other")
    served = await third.request()
    assert served.request_id == "other"
    third.answer(served, 0, [1], FinishReason.STOP)
    await other
    await service.engine(0, crashed=failed("engine-0-killed", request))
    await service.engine(1, crashed=failed("engine-1-killed", *[request] * guilty))
    if guilty:
        with pytest.raises(RequestFailed, match="2 engines failed"):
            await reader
        assert [message for engine in service.engines for message in engine.messages()] == []
        return
    suspect = service.llm._journal.get("poison")
    assert suspect is not None
    await service.until(lambda: bool(suspect.engine))
    given = next(engine for engine in service.engines if engine.identity.incarnation == suspect.engine)
    last = await given.request()
    assert (last.request_id, last.alone) == ("poison", True)
    given.answer(last, 0, [1], FinishReason.STOP)
    await reader


async def test_closing_fails_a_request_that_waits_for_reports(service: Service) -> None:
    reader, _ = await after_two_kills(service)
    await service.engine(2)
    await service.llm.close()
    with pytest.raises(Exception, match="shutting down"):
        await reader


async def test_reader_that_leaves_a_held_request_is_forgotten(service: Service) -> None:
    reader, request = await after_two_kills(service)
    third = await service.engine(2)
    reader.cancel()
    await asyncio.wait([reader])
    await service.engine(0, crashed=failed("engine-0-killed", request))
    assert third.messages() == []
