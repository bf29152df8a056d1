"""Requests through the whole client and the real link, against engines that do what a test says."""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from kvasir.client.async_llm import AsyncLLM, Delta
from kvasir.client.input.input_processor import Prompted
from kvasir.client.request_errors import EngineUnavailable, InvalidRequest, RequestFailed, TooManyRequests
from kvasir.config.settings import FrontendConfig, LinkConfig, ModelConfig, ServerConfig
from kvasir.hashing import chain_fits, chain_root, extend_chain
from kvasir.hub.model_info import ModelInfo
from kvasir.hub.tokenizer import Tokenizer, load_tokenizer
from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import (
    FEATURE_PREFIX_CACHE,
    FEATURE_PRIORITY,
    Abort,
    AddRequest,
    FinishReason,
    Goodbye,
    Ready,
    RequestOutput,
)
from kvasir.link.sockets import QUEUE_MESSAGES
from kvasir.params import SamplingFields, SamplingParams
from runtime.client import trained
from runtime.client.observers import RecordingObserver
from runtime.client.scripted_engine import PATIENCE, ScriptedEngine
from runtime.link.peers import BareEngine

MODEL: ModelInfo = trained.model_info()
LIVE_LIMIT = 300


class WatchedLLM(AsyncLLM):
    """Sets an event when an engine changes, after it was handled."""

    changed: asyncio.Event

    def engine_changed(self, engine: RemoteEngine) -> None:
        super().engine_changed(engine)
        self.changed.set()

    def engine_lost(self, engine: RemoteEngine, reason: str) -> None:
        super().engine_lost(engine, reason)
        self.changed.set()


class Service:
    """A frontend's client and the engines a test started for it."""

    def __init__(self, llm: WatchedLLM, observer: RecordingObserver, tokenizer: Tokenizer) -> None:
        self.llm = llm
        self.observer = observer
        self.tokenizer = tokenizer
        self.engines: list[ScriptedEngine] = []
        llm.changed = observer.changed

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what happens to engines or requests until this holds."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self.observer.changed.clear()
                await self.observer.changed.wait()

    def connect(self, *, ready: Ready | None = None, rank: int = 0) -> ScriptedEngine:
        """An engine on its way."""
        engine = ScriptedEngine(self.llm.link_address, MODEL, rank=rank)
        self.engines.append(engine)
        engine.start(ready)
        return engine

    async def engine(self, rank: int = 0) -> ScriptedEngine:
        """An engine that takes requests."""
        engine = ScriptedEngine(self.llm.link_address, MODEL, rank=rank)
        self.engines.append(engine)
        engine.start()
        await self.until(lambda: self.usable(engine))
        return engine

    def usable(self, engine: ScriptedEngine) -> bool:
        known = self.llm.engines.get(engine.identity.incarnation)
        return known is not None and known.usable

    def prompted(self, text: str = "The quick brown", max_tokens: int | None = None, **asked: object) -> Prompted:
        fields = SamplingFields(**asked)  # type: ignore[arg-type]
        return self.llm.input.prepare(self.tokenizer.encode(text, False), fields, max_tokens=max_tokens)

    def ask(self, request_id: str, **params: object) -> asyncio.Task[list[Delta]]:
        """A consumer that reads to the end."""

        async def read() -> list[Delta]:
            return [delta async for delta in self.llm.generate(request_id, self.prompted(**params))]

        return asyncio.create_task(read())


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(trained.save(trained.byte_level(), tmp_path_factory.mktemp("model")))


@pytest.fixture
async def service(tokenizer: Tokenizer, tmp_path: Path) -> AsyncIterator[Service]:
    observer = RecordingObserver()
    config = FrontendConfig(
        model=ModelConfig("demo://"),
        server=ServerConfig(max_live_requests=LIVE_LIMIT),
        link=LinkConfig(link=(f"ipc://{tmp_path}/link",)),
    )
    llm = WatchedLLM(config, MODEL, tokenizer, None, observer=observer)
    await llm.start()
    service = Service(llm, observer, tokenizer)
    yield service
    await llm.close()
    for engine in service.engines:
        engine.close()


async def test_tokens_of_an_engine_are_streamed_as_text(service: Service) -> None:
    engine = await service.engine()
    text = " fox jumps — 日本語"
    token_ids = service.tokenizer.encode(text, False)
    stream = service.llm.generate("r", service.prompted(seed=7))
    first = asyncio.ensure_future(anext(stream))
    request = await engine.request()
    assert (request.request_id, request.attempt, request.output_token_ids) == ("r", 1, [])
    assert service.tokenizer.decode(request.prompt_token_ids) == "The quick brown"
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
    assert service.observer.finished == [(FinishReason.STOP, len(request.prompt_token_ids), len(token_ids) + 1)]
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
    # What was on its way is dropped.
    engine.answer(request, 1, [5])
    reader = service.ask("next")
    request = await engine.request()
    engine.answer(request, 0, [1], FinishReason.STOP)
    assert [delta.token_ids for delta in await reader] == [[1]]


async def test_an_engine_that_dies_fails_its_requests_and_no_others(service: Service) -> None:
    engines = [await service.engine(0), await service.engine(1)]
    readers = [service.ask("a"), service.ask("b")]
    requests = [await engine.request() for engine in engines]
    for engine, request in zip(engines, requests, strict=True):
        engine.answer(request, 0, service.tokenizer.encode(" fox", False))
    engines[0].die("out of memory")
    by_id = dict(zip(("a", "b"), readers, strict=True))
    lost, kept = by_id.pop(requests[0].request_id), by_id.popitem()[1]
    with pytest.raises(RequestFailed, match=f"{engines[0].identity.incarnation} was lost .*try again"):
        await lost
    engines[1].answer(requests[1], len(service.tokenizer.encode(" fox", False)), [1], FinishReason.STOP)
    assert "".join(delta.text for delta in await kept) == " fox"
    assert sorted(reason for reason, *_ in service.observer.finished) == [FinishReason.ERROR, FinishReason.STOP]
    # The next ones go to the engine that is left.
    for n in range(3):
        reader = service.ask(f"later-{n}")
        engines[1].answer(await engines[1].request(), 0, [1], FinishReason.STOP)
        await reader


async def test_a_gap_in_positions_makes_the_engine_lost(service: Service) -> None:
    engine = await service.engine()
    readers = [service.ask("a"), service.ask("b")]
    requests = [await engine.request(), await engine.request()]
    engine.answer(requests[0], 0, [5])
    engine.answer(requests[0], 2, [6])
    for reader in readers:
        with pytest.raises(RequestFailed, match="was lost"):
            await reader
    assert service.llm.live_requests == 0


async def test_outputs_of_another_attempt_are_dropped(service: Service) -> None:
    engine = await service.engine()
    reader = service.ask("r")
    request = await engine.request()
    engine.answer(request, 0, [5], attempt=0)
    engine.answer(request, 7, [5], attempt=2)
    engine.answer(request, 0, [1], FinishReason.STOP)
    assert [delta.token_ids for delta in await reader] == [[1]]


async def test_a_request_that_the_engine_refuses_fails_with_its_words(service: Service) -> None:
    engine = await service.engine()
    reader = service.ask("r")
    request = await engine.request()
    engine.answer(request, 0, [], FinishReason.ERROR, error="the prompt does not fit")
    with pytest.raises(RequestFailed, match="the prompt does not fit"):
        await reader


async def test_without_an_engine_a_request_is_told_to_come_back(service: Service) -> None:
    with pytest.raises(EngineUnavailable, match="none is connected") as caught:
        await service.ask("r")
    assert caught.value.retry_after > 0
    assert not service.llm.ever_ready
    service.connect()
    await service.until(lambda: bool(service.llm.engines))
    with pytest.raises(EngineUnavailable, match="is Starting"):
        await service.ask("r")
    assert service.llm.live_requests == 0
    assert service.observer.started == service.observer.finished == []


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


async def test_requests_that_come_together_are_given_to_engines_together(
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
    readers = [service.ask(str(n)) for n in range(20)]
    counts = []
    for _ in range(3):
        await asyncio.sleep(0)
        counts.append(len(sent))
    assert counts == [0, 20, 20]
    assert sent == [str(n) for n in range(20)]
    for reader in readers:
        reader.cancel()
    await asyncio.wait(readers)


async def test_a_consumer_that_leaves_before_its_request_is_given_to_an_engine_leaves_nothing(
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


async def test_an_engine_that_drains_gets_no_new_requests_and_finishes_what_it_has(service: Service) -> None:
    engine = await service.engine()
    reader = service.ask("r")
    request = await engine.request()
    engine.link.drain()
    await service.until(lambda: not service.usable(engine))
    with pytest.raises(EngineUnavailable):
        await service.ask("late")
    engine.answer(request, 0, [1], FinishReason.STOP)
    assert [delta.token_ids for delta in await reader] == [[1]]
    assert service.llm.ever_ready


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


async def test_all_requests_at_once_come_and_go_before_an_engine_has_read_one(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    limit = 2 * QUEUE_MESSAGES
    config = FrontendConfig(
        model=ModelConfig("demo://"),
        server=ServerConfig(max_live_requests=limit),
        link=LinkConfig(link=(f"ipc://{tmp_path}/crowd",)),
    )
    llm = WatchedLLM(config, MODEL, tokenizer, None, observer=RecordingObserver())
    llm.changed = asyncio.Event()
    await llm.start()
    slow = BareEngine(llm.link_address, "slow", rcvhwm=1)
    slow.introduce(service="", fingerprint=MODEL.fingerprint, tokenizer_hash=MODEL.tokenizer_hash)
    async with asyncio.timeout(PATIENCE):
        while "slow" not in llm.engines or not llm.engines["slow"].usable:
            llm.changed.clear()
            await llm.changed.wait()
    prompted = Prompted([5] * 500, SamplingParams(max_tokens=8, seed=0))
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


async def test_the_context_is_what_every_ready_engine_can_hold(service: Service) -> None:
    assert service.llm.max_model_len == 128
    await service.engine()
    small = service.connect(ready=Ready(block_size=16, num_blocks=4, max_model_len=48, max_num_seqs=1), rank=1)
    await service.until(lambda: service.usable(small))
    assert service.llm.max_model_len == 48
    assert service.llm.input.prepare([5] * 8).params.max_tokens == 40
    small.close()
    await service.until(lambda: service.llm.max_model_len == 128)


async def test_an_engine_with_a_prefix_cache_gets_the_hashes_of_the_prompt(service: Service) -> None:
    plain = await service.engine()
    task = service.ask("plain")
    assert (await plain.request()).block_hashes == []
    plain.close()
    with pytest.raises(RequestFailed):
        await task
    caching = service.connect(ready=Ready(4, 64, 128, 8, (FEATURE_PREFIX_CACHE,)))
    await service.until(lambda: service.usable(caching))
    prompted = service.llm.input.prepare([5] * 11, cache_salt="tenant")
    task = asyncio.create_task(anext(service.llm.generate("cached", prompted)))
    request = await caching.request()
    assert (len(request.block_hashes), request.cache_salt) == (2, "tenant")
    assert chain_fits(request.block_hashes, chain_root("tenant"), [5] * 11, 4)
    task.cancel()


async def test_a_prompt_is_hashed_once_for_all_of_its_choices(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    caching = service.connect(ready=Ready(4, 64, 128, 8, (FEATURE_PREFIX_CACHE,)))
    await service.until(lambda: service.usable(caching))
    hashed: list[int] = []

    def extend(hashes: list[bytes], root: bytes, token_ids: list[int], block_size: int) -> None:
        hashed.append(len(token_ids))
        extend_chain(hashes, root, token_ids, block_size)

    monkeypatch.setattr("kvasir.client.journal.extend_chain", extend)
    prompts = [service.llm.input.prepare([token] * 11) for token in (5, 6)]
    tasks = [
        asyncio.create_task(anext(service.llm.generate(f"{number}-{index}", prompted.child(index))))
        for number, prompted in enumerate(prompts)
        for index in range(3)
    ]
    for _ in tasks:
        request = await caching.request()
        assert chain_fits(request.block_hashes, chain_root(), request.prompt_token_ids, 4)
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


async def test_draining_waits_for_the_last_consumer_and_no_longer_than_its_timeout(service: Service) -> None:
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


async def test_closing_fails_what_is_live_and_tells_the_engine(service: Service) -> None:
    # A bare socket: an engine's link may learn of the end of the connection before it reads what came last.
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


async def test_nothing_is_left_of_many_requests_whose_consumers_come_and_go(service: Service) -> None:
    rng = random.Random(0)
    engines = [await service.engine(0), await service.engine(1)]
    readers = [service.ask(f"r{n}", max_tokens=8) for n in range(200)]
    running: dict[str, tuple[ScriptedEngine, AddRequest, int]] = {}
    aborted: set[str] = set()
    async with asyncio.timeout(30):
        while not all(reader.done() for reader in readers):
            await asyncio.sleep(0.001)
            if (reader := rng.choice(readers)) and rng.random() < 0.5:
                reader.cancel()
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
        else:
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
