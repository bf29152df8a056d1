"""Routing with real parts: a frontend's client and three engine loops on the link, over fake executors."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator

import pytest

from kvasir.client.request_observer import Trace
from kvasir.config.process_settings import LinkConfig
from kvasir.engine.health.engine_status import EngineStatus
from kvasir.engine.inbox import Inbox
from kvasir.engine.loop import EngineLoop
from kvasir.link.engine_end.engine_link import EngineIdentity, EngineLink, new_incarnation
from kvasir.link.protocol import FEATURE_PREFIX_CACHE, Goodbye, Ready
from kvasir.request.params import SamplingFields
from kvasir_contract.phases import Phase
from runtime.client.scripted_engine import PATIENCE
from runtime.client.service import MODEL, Service
from runtime.engine.core_harness import CoreHarness

BLOCK_SIZE = 4
NUM_BLOCKS = 40


class RunningEngine:
    """A loop on its own thread, with a pool so small that it evicts."""

    def __init__(self, address: str, rank: int) -> None:
        self.incarnation = new_incarnation(rank)
        self.harness = CoreHarness(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_model_len=130)
        inbox = Inbox()
        identity = EngineIdentity(self.incarnation, rank, "test", "", "0", MODEL.fingerprint, MODEL.tokenizer_hash)
        self.link = EngineLink(LinkConfig(link=(address,)), identity, inbox.put, inbox.flush)
        status = EngineStatus(self.incarnation, rank, heartbeat_timeout=10)
        status.enter(Phase.READY)
        inbox.open(self.harness.core.ingest)
        self.loop = EngineLoop(self.harness.core, self.link, inbox, status, drain_timeout=5, drain_settle=0.05)
        self._thread = threading.Thread(target=self.loop.run, daemon=True)
        self.link.announce_ready(Ready(BLOCK_SIZE, NUM_BLOCKS, 130, 8, (FEATURE_PREFIX_CACHE,)))

    def start(self) -> None:
        self.link.start()
        self._thread.start()

    def close(self) -> None:
        self.loop.drain()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self.link.close(Goodbye())

    @property
    def hashes(self) -> set[bytes]:
        cache = self.harness.blocks.pool.cache
        assert cache is not None
        return set(cache.hashes(range(1, NUM_BLOCKS + 1)))


@pytest.fixture
async def engines(service: Service) -> AsyncIterator[list[RunningEngine]]:
    engines = [RunningEngine(service.llm.link_address, rank) for rank in range(3)]
    for engine in engines:
        engine.start()
    await service.until(lambda: sum(engine.usable for engine in service.llm.engines.values()) == 3)
    yield engines
    for engine in engines:
        await asyncio.to_thread(engine.close)


async def ask(service: Service, request_id: str, prompt: list[int]) -> Trace:
    """Read an answer of four tokens."""
    trace = Trace()
    prompted = service.llm.input.prepare(prompt, SamplingFields(ignore_eos=True), max_tokens=4)
    async for _ in service.llm.generate(request_id, prompted, trace):
        pass
    return trace


async def index_is_exact(service: Service, engines: list[RunningEngine]) -> None:
    """Wait until the index has the content of all caches; the engines have nothing to do."""
    index = service.llm._router.index
    await service.until(lambda: all(index.hashes_of(engine.incarnation) == engine.hashes for engine in engines))


def prompt_of(family: int, own: int, length: int) -> list[int]:
    return [100 + family] * 24 + [200 + own % 90] * length


async def test_the_index_follows_evictions_resets_and_reconnects(
    service: Service, engines: list[RunningEngine]
) -> None:
    rng, name = random.Random(0), engines[0].incarnation
    for wave in range(6):
        prompts = [prompt_of(rng.randrange(5), rng.randrange(90), rng.randrange(1, 40)) for _ in range(12)]
        await asyncio.gather(*(ask(service, f"{wave}-{place}", prompt) for place, prompt in enumerate(prompts)))
        await index_is_exact(service, engines)
        if wave == 2:
            service.llm._link.lose(name, "for the test")
            assert name not in service.llm.engines
            await service.until(lambda: name in service.llm.engines and service.llm.engines[name].usable)
            await index_is_exact(service, engines)
            assert engines[0].hashes
        if wave == 4:
            for outcome in await service.llm.call("reset_prefix_cache"):
                assert not outcome.error
            await index_is_exact(service, engines)
            assert not any(engine.hashes for engine in engines)
    assert any(len(engine.hashes) > NUM_BLOCKS // 2 for engine in engines)


async def test_requests_are_charged_until_they_end(service: Service, engines: list[RunningEngine]) -> None:
    await asyncio.gather(*(ask(service, f"{own}", prompt_of(own, own, 20)) for own in range(6)))
    loads = service.llm._router._loads
    assert len(loads) == 3
    for load in loads.values():
        assert (load.own, load.uncached_tokens) == (0, 0)
        assert load.row_seconds is not None
        assert load.mean_uncached > 0


async def test_a_second_turn_finds_the_cache_of_the_first(service: Service, engines: list[RunningEngine]) -> None:
    turns = [prompt_of(0, own, 20) for own in range(6)]
    first = {own: await ask(service, f"first-{own}", turns[own]) for own in range(3)}
    await index_is_exact(service, engines)
    for own in (2, 0, 1):
        second = await ask(service, f"second-{own}", turns[own] + [300] * 8)
        assert second.engine == first[own].engine
        assert second.cached_tokens == 44
