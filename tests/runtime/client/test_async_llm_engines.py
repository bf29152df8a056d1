"""How the client uses the engines on its link: which it picks, their abilities, and how it loses them."""

import asyncio
from array import array
from contextlib import closing

import pytest

from kvasir.client.request_errors import EngineUnavailable, InvalidRequest, RequestFailed
from kvasir.link.protocol import (
    FEATURE_PREFIX_CACHE,
    FEATURE_PRIORITY,
    Abort,
    AddRequest,
    FinishReason,
    Goodbye,
    Ready,
    RefusalKind,
)
from kvasir.request.hashing import ChainRoot, chain_fits, chain_root, packed_chain
from kvasir.request.tokens import from_wire, token_array
from runtime.client.scripted_engine import ScriptedEngine
from runtime.client.service import HOLDS_NONE, MODEL, Service
from runtime.link.bare_peers import BareEngine
from runtime.link_messages import hashes_of


async def test_a_request_that_the_engine_refuses_fails_with_its_words(service: Service) -> None:
    engine = await service.engine()
    reader = service.ask("r")
    request = await engine.request()
    engine.answer(request, 0, [], FinishReason.ERROR, error="the prompt does not fit")
    with pytest.raises(RequestFailed, match="the prompt does not fit"):
        await reader


def refuse(engine: ScriptedEngine, request: AddRequest, refusal: RefusalKind) -> None:
    engine.answer(request, 0, [], FinishReason.ERROR, error=f"rank {engine.identity.rank} refuses", refusal=refusal)


@pytest.mark.parametrize("refusal", [RefusalKind.OVERLOADED, RefusalKind.UNAVAILABLE])
async def test_a_request_that_a_full_engine_refuses_goes_to_another(service: Service, refusal: RefusalKind) -> None:
    full = await service.engine(0)
    reader = service.ask("r")
    refused = await full.request()
    other = await service.engine(1)
    refuse(full, refused, refusal)
    request = await other.request()
    assert (request.request_id, request.attempt) == ("r", 2)
    other.answer(request, 0, [5], FinishReason.STOP)
    assert [token for delta in await reader for token in delta.token_ids] == [5]
    assert len(service.observer.started) == 1
    assert [reason for reason, *_ in service.observer.finished] == [FinishReason.STOP]


async def test_a_request_that_full_engines_refuse_waits(service: Service) -> None:
    first = await service.engine(0)
    reader = service.ask("r")
    refused = await first.request()
    last = await service.engine(1)
    refuse(first, refused, RefusalKind.OVERLOADED)
    refuse(last, await last.request(), RefusalKind.OVERLOADED)
    await service.until(lambda: service.llm.waiting_requests == 1)
    assert first.messages() == last.messages() == []
    first.step([])
    again = await first.request()
    assert (again.attempt, again.age) == (3, 0)
    first.answer(again, 0, [5], FinishReason.STOP)
    await reader
    assert len(service.observer.started) == len(service.observer.finished) == 1
    assert service.llm.live_requests == 0


async def test_refused_request_moves_though_its_engine_is_lost_at_once(service: Service) -> None:
    full = await service.engine(0)
    reader = service.ask("r")
    refused = await full.request()
    other = await service.engine(1)
    refuse(full, refused, RefusalKind.UNAVAILABLE)
    full.close()
    other.answer(await other.request(), 0, [5], FinishReason.STOP)
    await reader


@HOLDS_NONE
async def test_without_an_engine_a_request_is_told_to_come_back(service: Service) -> None:
    with pytest.raises(EngineUnavailable, match="none is connected") as caught:
        await service.ask("r")
    assert caught.value.retry_after > 0
    assert not service.llm.gate.accepts
    service.connect()
    await service.until(lambda: bool(service.llm.engines))
    with pytest.raises(EngineUnavailable, match="is Starting"):
        await service.ask("r")
    assert service.llm.live_requests == 0
    assert service.observer.started == []
    assert service.observer.finished == []


async def test_a_request_that_cannot_be_sent_goes_to_another_engine(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = [await service.engine(0), await service.engine(1)]
    link = service.llm._link
    send = link.send
    broken: list[str] = []

    def send_fails_once(incarnation: str, message: AddRequest | Abort) -> bool:
        if not broken:
            broken.append(incarnation)
            link.lose(incarnation, "its connection broke")
            return False
        return send(incarnation, message)

    monkeypatch.setattr(link, "send", send_fails_once)
    reader = service.ask("r")
    await service.until(lambda: bool(broken))
    (other,) = (engine for engine in engines if engine.identity.incarnation not in broken)
    request = await other.request()
    assert request.attempt == 1
    other.answer(request, 0, [1], FinishReason.STOP)
    assert [delta.token_ids for delta in await reader] == [[1]]
    assert len(service.observer.started) == 1


async def test_requests_that_come_together_reach_engines_together(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.engine()
    link = service.llm._link
    send = link.send
    sent: list[str] = []

    def recorded(incarnation: str, message: AddRequest | Abort) -> bool:
        if isinstance(message, AddRequest):
            sent.append(message.request_id)
        return send(incarnation, message)

    monkeypatch.setattr(link, "send", recorded)
    readers = [service.ask(str(n)) for n in range(10)]
    counts = []
    for _ in range(3):
        await asyncio.sleep(0)
        counts.append(len(sent))
    assert counts == [0, 10, 10]
    assert sent == [str(n) for n in range(10)]
    for reader in readers:
        reader.cancel()
    await asyncio.wait(readers)


@HOLDS_NONE
async def test_draining_engine_gets_no_requests_and_finishes_its_own(service: Service) -> None:
    engine = await service.engine()
    reader = service.ask("r")
    request = await engine.request()
    engine.link.drain()
    await service.until(lambda: not service.usable(engine))
    with pytest.raises(EngineUnavailable):
        await service.ask("late")
    engine.answer(request, 0, [1], FinishReason.STOP)
    assert [delta.token_ids for delta in await reader] == [[1]]
    assert service.llm.gate.accepts


async def test_the_context_is_what_every_ready_engine_can_hold(service: Service) -> None:
    assert service.llm.max_model_len == 128
    await service.engine()
    small = service.connect(ready=Ready(block_size=16, num_blocks=4, max_model_len=48, max_num_seqs=1), rank=1)
    await service.until(lambda: service.usable(small))
    assert service.llm.max_model_len == 48
    assert service.llm.input.prepare([5] * 8).params.max_tokens == 40
    small.close()
    await service.until(lambda: service.llm.max_model_len == 128)


@HOLDS_NONE
async def test_engine_with_a_prefix_cache_gets_hashes_of_the_prompt(service: Service) -> None:
    plain = await service.engine()
    task = service.ask("plain")
    assert (await plain.request()).block_hashes == b""
    plain.close()
    with pytest.raises(RequestFailed):
        await task
    caching = service.connect(ready=Ready(4, 64, 128, 8, (FEATURE_PREFIX_CACHE,)))
    await service.until(lambda: service.usable(caching))
    prompted = service.llm.input.prepare([5] * 11, cache_salt="tenant")
    first = asyncio.create_task(anext(service.llm.generate("cached", prompted)))
    request = await caching.request()
    assert (len(hashes_of(request)), request.cache_salt) == (2, "tenant")
    assert chain_fits(request.block_hashes, chain_root("tenant"), token_array([5] * 11), 4)
    first.cancel()


@pytest.mark.parametrize("inline_tokens", [11, 10], ids=["on the event loop", "in a thread"])
async def test_a_prompt_is_hashed_once_for_all_of_its_choices(
    service: Service, monkeypatch: pytest.MonkeyPatch, inline_tokens: int
) -> None:
    caching = service.connect(ready=Ready(4, 64, 128, 8, (FEATURE_PREFIX_CACHE,)))
    await service.until(lambda: service.usable(caching))
    hashed: list[int] = []

    def chain(root: ChainRoot, token_ids: "array[int]", block_size: int) -> bytes:
        hashed.append(len(token_ids))
        return packed_chain(root, token_ids, block_size)

    monkeypatch.setattr("kvasir.client.input.prompted.packed_chain", chain)
    monkeypatch.setattr("kvasir.client.input.prompted.INLINE_TOKENS", inline_tokens)
    prompts = [service.llm.input.prepare([token] * 11) for token in (5, 6)]
    tasks = [
        asyncio.create_task(anext(service.llm.generate(f"{number}-{index}", prompted.child(index))))
        for number, prompted in enumerate(prompts)
        for index in range(3)
    ]
    for _ in tasks:
        request = await caching.request()
        assert chain_fits(request.block_hashes, chain_root(), from_wire(request.prompt_tokens), 4)
    assert hashed == [11, 11]
    for task in tasks:
        task.cancel()


async def test_a_priority_is_refused_unless_every_engine_looks_at_it(service: Service) -> None:
    first = service.connect(ready=Ready(16, 64, 128, 8, (FEATURE_PRIORITY,)))
    await service.until(lambda: service.usable(first))
    task = asyncio.create_task(anext(service.llm.generate("r", service.llm.input.prepare([5], priority=-2))))
    assert (await first.request()).priority == -2
    await service.engine(rank=1)
    with pytest.raises(InvalidRequest, match="--scheduling-policy priority"):
        service.llm.input.prepare([5], priority=-2)
    task.cancel()


async def test_closing_fails_what_is_live_and_tells_the_engine(service: Service) -> None:
    # A bare socket: an engine's link may learn of the end of the connection before it reads the last message.
    with closing(BareEngine(service.llm.link_address, "bare")) as engine:
        engine.introduce(service="", fingerprint=MODEL.fingerprint, tokenizer_hash=MODEL.tokenizer_hash)
        await service.until(lambda: "bare" in service.llm.engines and service.llm.engines["bare"].usable)
        reader = service.ask("r")
        await asyncio.to_thread(engine.expect, AddRequest)
        await service.llm.close()
        with pytest.raises(RequestFailed, match="shutting down"):
            await reader
        assert (await asyncio.to_thread(engine.expect, Abort)).request_ids == ["r"]
        await asyncio.to_thread(engine.expect, Goodbye)
    with pytest.raises(EngineUnavailable, match="shutting down"):
        await service.ask("late")
