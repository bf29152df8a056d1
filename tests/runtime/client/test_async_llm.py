"""Requests through the whole client and the real link, against engines that a test controls."""

import asyncio
import os
import random
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest
from msgspec import structs

from kvasir.client.input.chat_templates import ChatTemplates
from kvasir.client.input.prompted import Prompted
from kvasir.client.request_errors import EngineUnavailable, InvalidRequest, TooManyRequests
from kvasir.config.frontend_settings import FrontendConfig, ServerConfig
from kvasir.config.process_settings import LinkConfig
from kvasir.config.settings import ModelConfig
from kvasir.hub.tokenizer import Tokenizer
from kvasir.link.codec import Agreement, Codec
from kvasir.link.protocol import (
    Abort,
    AddRequest,
    FinishReason,
    RefusalKind,
    RequestOutput,
    Since,
)
from kvasir.request.params import SamplingParams
from kvasir.request.request_core import RequestCore
from kvasir.request.tokens import token_array
from kvasir.wire.sockets import QUEUE_MESSAGES
from runtime.client.observers import RecordingObserver
from runtime.client.scripted_engine import PATIENCE, ScriptedEngine
from runtime.client.service import LIVE_LIMIT, MODEL, Service, WatchedLLM
from runtime.link.bare_peers import BareEngine
from runtime.link_messages import prompt_of


async def test_tokens_of_an_engine_are_streamed_as_text(service: Service) -> None:
    engine = await service.engine()
    text = " fox jumps — 日本語"
    token_ids = service.tokenizer.encode(text, False)
    stream = service.llm.generate("r", service.prompted(seed=7))
    first = asyncio.ensure_future(anext(stream))
    request = await engine.request()
    assert (request.request_id, request.attempt, request.output_tokens) == ("r", 1, b"")
    assert service.tokenizer.decode(prompt_of(request)) == "The quick brown"
    assert request.params.seed == 7
    engine.answer(request, 0, token_ids[:1])
    deltas = [await first]
    for position, token_id in enumerate(token_ids[1:], 1):
        engine.answer(request, position, [token_id])
    engine.answer(request, len(token_ids), [1], FinishReason.STOP)
    deltas += [delta async for delta in stream]
    assert "".join(delta.text for delta in deltas) == text
    assert [token_id for delta in deltas for token_id in delta.token_ids] == [*token_ids, 1]
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [FinishReason.STOP]
    assert all(delta.text for delta in deltas[:-1])
    assert service.llm.live_requests == 0
    assert service.observer.finished == [(FinishReason.STOP, len(prompt_of(request)), len(token_ids) + 1)]
    assert sum(service.observer.tokens) == len(token_ids) + 1
    assert len(service.observer.started) == len(service.observer.first_tokens) == 1


async def test_a_slow_consumer_gets_larger_deltas(service: Service) -> None:
    engine = await service.engine()
    token_ids = service.tokenizer.encode("again and again and again", False)
    async with aclosing(service.llm.generate("r", service.prompted())) as deltas:
        first = asyncio.ensure_future(anext(deltas))
        request = await engine.request()
        engine.answer(request, 0, token_ids[:1])
        assert (await first).token_ids == token_ids[:1]
        for position, token_id in enumerate(token_ids[1:], 1):
            engine.answer(request, position, [token_id])
        engine.answer(request, len(token_ids), [1], FinishReason.STOP)
        await service.until(lambda: bool(service.observer.finished))
        rest = [delta async for delta in deltas]
    assert [delta.token_ids for delta in rest] == [[*token_ids[1:], 1]]


@pytest.mark.parametrize("way", ["cancel", "close"])
async def test_a_consumer_that_leaves_aborts_its_request(service: Service, way: str) -> None:
    engine = await service.engine()
    deltas = service.llm.generate("r", service.prompted())
    first = asyncio.ensure_future(anext(deltas))
    request = await engine.request()
    if way == "cancel":
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
    else:
        engine.answer(request, 0, service.tokenizer.encode(" fox", False))
        await first
        await deltas.aclose()
    assert await engine.abort() == ["r"]
    assert service.llm.live_requests == 0
    assert [reason for reason, *_ in service.observer.finished] == [FinishReason.ABORT]
    # An output that was on its way is dropped.
    engine.answer(request, 1, [5])
    reader = service.ask("next")
    request = await engine.request()
    engine.answer(request, 0, [1], FinishReason.STOP)
    assert [delta.token_ids for delta in await reader] == [[1]]


async def test_outputs_of_another_attempt_are_dropped(service: Service) -> None:
    engine = await service.engine()
    reader = service.ask("r")
    request = await engine.request()
    engine.answer(request, 0, [5], attempt=0)
    engine.answer(request, 7, [5], attempt=2)
    engine.answer(request, 0, [1], FinishReason.STOP)
    assert [delta.token_ids for delta in await reader] == [[1]]


async def test_consumer_that_leaves_before_dispatch_leaves_nothing(
    service: Service,
) -> None:
    engine = await service.engine()
    first = anext(service.llm.generate("gone", service.prompted())).__await__()
    first.send(None)
    with pytest.raises(asyncio.CancelledError):
        first.throw(asyncio.CancelledError())
    reader = service.ask("next")
    request = await engine.request()
    assert request.request_id == "next"
    engine.answer(request, 0, [1], FinishReason.STOP)
    await reader
    assert service.llm.live_requests == 0
    assert len(service.observer.started) == len(service.observer.finished) == 1


async def test_request_that_its_engine_rejects_is_started_and_finished(service: Service) -> None:
    engine = await service.engine()
    reader = service.ask("r")
    request = await engine.request()
    refused = RequestOutput("r", request.attempt, 0, [], FinishReason.ERROR, error="odd")
    engine.step([structs.replace(refused, refusal=RefusalKind.INVALID)])
    with pytest.raises(InvalidRequest, match="odd"):
        await reader
    prompt_tokens = len(prompt_of(request))
    assert service.observer.started == [prompt_tokens]
    assert service.observer.finished == [(FinishReason.ERROR, prompt_tokens, 0)]


async def test_more_requests_than_the_limit_are_refused(service: Service) -> None:
    await service.engine()
    readers = [service.ask(str(n)) for n in range(LIVE_LIMIT)]
    await service.until(lambda: service.llm.live_requests == LIVE_LIMIT)
    with pytest.raises(TooManyRequests, match="--max-live-requests"):
        await service.ask("one too many")
    for reader in readers:
        reader.cancel()
    await asyncio.wait(readers)
    assert service.llm.live_requests == 0


async def test_requests_come_and_go_before_an_engine_has_read_one(tokenizer: Tokenizer, tmp_path: Path) -> None:
    limit = 2 * QUEUE_MESSAGES
    config = FrontendConfig(
        model=ModelConfig("demo://"),
        server=ServerConfig(max_live_requests=limit),
        link=LinkConfig(link=(f"ipc://{tmp_path}/crowd",)),
    )
    llm = WatchedLLM(config, MODEL, tokenizer, ChatTemplates(None), observer=RecordingObserver())
    llm.changed = asyncio.Event()
    await llm.start()
    slow = BareEngine(llm.link_address, "slow", rcvhwm=1)
    slow.introduce(service="", fingerprint=MODEL.fingerprint, tokenizer_hash=MODEL.tokenizer_hash)
    async with asyncio.timeout(PATIENCE):
        while "slow" not in llm.engines or not llm.engines["slow"].usable:
            llm.changed.clear()
            await llm.changed.wait()
    prompted = Prompted(token_array([5] * 500), RequestCore(SamplingParams(max_tokens=8, seed=0)))
    readers = [asyncio.create_task(anext(llm.generate(f"r{n}", prompted))) for n in range(limit)]
    await asyncio.sleep(0)
    assert llm.live_requests == limit
    for reader in readers:
        reader.cancel()
    results = await asyncio.gather(*readers, return_exceptions=True)
    assert {type(result) for result in results} == {asyncio.CancelledError}
    assert llm.live_requests == 0
    assert llm.engines["slow"].usable
    aborted = [(await asyncio.to_thread(slow.expect, Abort)).request_ids for _ in range(limit)]
    assert {request_id for ids in aborted for request_id in ids} == {f"r{n}" for n in range(limit)}
    await llm.close()
    slow.close()


async def test_drain_waits_for_the_last_consumer_up_to_its_timeout(service: Service) -> None:
    await service.llm.drain(PATIENCE)
    engine = await service.engine()
    deltas = service.llm.generate("r", service.prompted())
    last = asyncio.ensure_future(anext(deltas))
    request = await engine.request()
    await service.llm.drain(0.01)
    assert service.llm.live_requests == 1
    draining = asyncio.create_task(service.llm.drain(PATIENCE))
    engine.answer(request, 0, [1], FinishReason.STOP)
    await last
    assert not draining.done()
    await deltas.aclose()
    await draining


async def test_nothing_is_left_of_requests_whose_consumers_come_and_go(service: Service) -> None:
    rng = random.Random(0)
    engines = [await service.engine(0), await service.engine(1)]
    readers = [service.ask(f"r{n}", max_tokens=8) for n in range(200)]
    running: dict[str, tuple[ScriptedEngine, AddRequest, int]] = {}
    aborted: set[str] = set()
    leaving = rng.sample(readers, 100)
    async with asyncio.timeout(PATIENCE):
        while not all(reader.done() for reader in readers):
            await asyncio.sleep(0.001)
            for _ in range(min(10, len(leaving))):  # all of them leave within the eight steps of a request
                leaving.pop().cancel()
            for engine in engines:
                step(engine, running, aborted, rng)
    results = await asyncio.gather(*readers, return_exceptions=True)
    assert {type(result) for result in results} == {list, asyncio.CancelledError}
    assert service.llm.live_requests == 0
    assert all(
        len([t for delta in result for t in delta.token_ids]) == 8 for result in results if type(result) is list
    )
    assert len(service.observer.finished) == len(service.observer.started)
    left = [reason for reason, *_ in service.observer.finished if reason is FinishReason.ABORT]
    async with asyncio.timeout(PATIENCE):
        while len(aborted) < len(left):
            await asyncio.sleep(0.001)
            for engine in engines:
                step(engine, running, aborted, rng)
    assert len(aborted) == len(left) > 0


def step(
    engine: ScriptedEngine,
    running: dict[str, tuple[ScriptedEngine, AddRequest, int]],
    aborted: set[str],
    rng: random.Random,
) -> None:
    """One token for each request of this engine, eight in all; late by a step for those just aborted."""
    for message in engine.messages():
        if isinstance(message, AddRequest):
            running[message.request_id] = (engine, message, 0)
        elif isinstance(message, Abort):
            aborted.update(message.request_ids)
    outputs = []
    for request_id, (owner, request, position) in list(running.items()):
        if owner is not engine:
            continue
        reason = FinishReason.LENGTH if position == 7 else None
        outputs.append(RequestOutput(request_id, request.attempt, position, [rng.randrange(4, 300)], reason))
        running[request_id] = (engine, request, position + 1)
        if reason or request_id in aborted:
            del running[request_id]
    if outputs:
        engine.step(outputs)


def test_the_client_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, kvasir.client.async_llm; "
        "print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert result.stdout.strip() == "[]"


# ------------------------------------------------------------------------------------------ engines of two versions


async def older_and_newer(service: Service) -> tuple[ScriptedEngine, ScriptedEngine]:
    """Return an engine that does not understand min_p, and one that does."""
    codec = Codec(2, since=Since(fields={(SamplingParams, "min_p"): 2}))
    old, new = await service.engine(0), await service.engine(1)
    for engine, version in ((old, 1), (new, 2)):
        service.llm.engines[engine.identity.incarnation].agreement = Agreement(codec, version)
    return old, new


async def test_a_request_goes_to_an_engine_that_understands_it(service: Service) -> None:
    old, new = await older_and_newer(service)
    asked = {f"r{i}": service.ask(f"r{i}", max_tokens=1, min_p=0.1) for i in range(4)}
    for _ in asked:
        new.answer(await new.request(), 0, [5], FinishReason.LENGTH)
    await asyncio.gather(*asked.values())
    assert old.messages() == []
    new.close()
    await service.until(lambda: not service.usable(new))
    with pytest.raises(EngineUnavailable, match="of an older version"):
        await service.ask("late", min_p=0.1)
    plain = service.ask("plain", max_tokens=1)
    old.answer(await old.request(), 0, [5], FinishReason.LENGTH)
    await plain


async def test_a_request_that_one_full_engine_understands_waits(service: Service) -> None:
    old, new = await older_and_newer(service)
    asked = service.ask("r", max_tokens=1, min_p=0.1)
    new.answer(await new.request(), 0, [], FinishReason.ERROR, error="full", refusal=RefusalKind.OVERLOADED)
    await service.until(lambda: service.llm.waiting_requests == 1)
    plain = service.ask("plain", max_tokens=1)  # the other engine has room
    old.answer(await old.request(), 0, [5], FinishReason.LENGTH)
    await plain
    assert new.messages() == []  # it is asked again when its queue is shorter
    new.step([])
    new.answer(await new.request(), 0, [5], FinishReason.LENGTH)
    await asked
