"""A real engine with the demo model, in the process of the test, that is lost, or drains, at exact tokens.

Its workers and its loop stay. Only its link ends, and the next one has a new incarnation, as after a restart. So a
test can lose hundreds of engines within seconds, each at the message that it chooses.
"""

import threading
from collections.abc import Callable
from typing import Final

from kvasir.config.process_settings import LinkConfig
from kvasir.config.settings import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
)
from kvasir.engine.build import build_core, numerics_class, prepare_workers, resolve_settings
from kvasir.engine.health.engine_status import EngineStatus
from kvasir.engine.inbox import Inbox
from kvasir.engine.loop import EngineLoop
from kvasir.executor.executor_for import executor_for
from kvasir.hub.model_info import ModelInfo
from kvasir.link.engine_end.engine_link import (
    DrainSettled,
    EngineIdentity,
    EngineLink,
    FrontendLost,
    Received,
    new_incarnation,
)
from kvasir.link.protocol import (
    AdaptersHeld,
    CacheEvents,
    Dead,
    EngineStats,
    FailedStep,
    Goodbye,
    Outputs,
    Ready,
    Result,
)
from kvasir_contract.phases import Phase
from runtime.frontend.scripted import TIMEOUT

NEVER: Final = 1 << 60


class MortalEngine:
    """Implements the Link of its loop: passes messages on, until it must die."""

    def __init__(
        self,
        link: LinkConfig,
        model: ModelInfo,
        rank: int,
        permit_death: Callable[[str], None],
        speculative_config: str = "{}",
    ) -> None:
        """`permit_death`: returns once this incarnation may end; called in its thread."""
        self._messages_per_life, self._drains = NEVER, False
        self.deaths = 0
        self._link_config, self._model, self._rank = link, model, rank
        self._permit_death = permit_death
        self._config = EngineConfig(
            ModelConfig("demo://"),
            DeviceConfig(device="cpu", dtype="float32", threads=1),
            CacheConfig(kv_cache_memory_bytes=2**24, enable_prefix_caching=False),
            SchedulerConfig(speculative_config=speculative_config),
            parallel=ParallelConfig(data_parallel_rank=rank),
        )
        settings = resolve_settings(self._config, model)
        self._executor = executor_for(settings, model)
        self._executor.start(lambda done, total: None, lambda error: None)
        self._settings, self._cache = prepare_workers(self._executor, settings, asked=None)
        self.core = core = build_core(self._settings, model, self._cache, self._executor)
        self._inbox = Inbox()
        self._inbox.open(core.ingest)
        self._sent = 0
        self._frontends: set[str] = set()
        self._link: EngineLink | None = None
        self._successor: threading.Thread | None = None
        self._draining = False
        self._settled = threading.Event()
        self._loop = EngineLoop(core, self, self._inbox, EngineStatus("test", rank, 10.0), 30.0, 0.0)
        self._thread = threading.Thread(target=self._loop.run, name=f"mortal engine {rank}")
        self._connect()
        self._thread.start()

    def live_for(self, messages: int, *, drains: bool = False) -> None:
        """Let each incarnation send this many messages with tokens, counted from now on. The next one is lost with
        it. `drains`: instead, it drains, with a timeout that no request meets, and ends when it has no requests."""
        self._messages_per_life, self._drains, self._sent = messages, drains, 0

    def close(self) -> None:
        self._loop.drain()
        self._thread.join()
        if self._successor is not None:
            self._successor.join()
        if self._link is not None:
            self._link.close(Goodbye())
        self._executor.shutdown()

    # ------------------------------------------------------------------------------------- the Link of its loop

    def send(self, frontend: str, message: Outputs | CacheEvents | Result) -> None:
        link = self._link
        if link is None:  # it died in this step
            return
        if isinstance(message, Outputs) and any(output.token_ids for output in message.outputs):
            if self._sent >= self._messages_per_life and not self._draining:
                if not self._drains:
                    self._die(link)
                    return
                self._begin_drain(link)  # frontends have moved its requests before they get this message
            self._sent += 1
        link.send(frontend, message)

    def show_adapters(self, held: AdaptersHeld) -> None:
        pass

    def set_load(self, stats: EngineStats, busy: bool) -> None:
        link = self._link
        if link is None:
            return
        link.set_load(stats, busy)
        if self._draining and self._settled.is_set() and not stats.waiting + stats.running:
            self._draining = False
            self._end(link, Goodbye())

    def drain(self, seconds: float) -> None:
        if self._link is not None:
            self._link.drain(seconds)

    # ------------------------------------------------------------------------------------------- death and birth

    def _die(self, link: EngineLink) -> None:
        self._permit_death(self.incarnation)
        self.deaths += 1
        self._end(link, Dead("the test has ended this life", FailedStep(self.incarnation)))

    def _begin_drain(self, link: EngineLink) -> None:
        self._permit_death(self.incarnation)
        self.deaths += 1
        self._draining = True
        self._settled.clear()
        link.drain(1e-6)
        assert self._settled.wait(TIMEOUT)

    def _end(self, link: EngineLink, last: Dead | Goodbye) -> None:
        self._link = None
        for frontend in self._frontends:
            self._inbox.put(FrontendLost(frontend))
        self._successor = threading.Thread(target=self._succeed, args=(link, last))
        self._successor.start()

    def _succeed(self, ended: EngineLink, last: Dead | Goodbye) -> None:
        ended.close(last)
        self._connect()

    def _connect(self) -> None:
        self._sent = 0
        self.incarnation = new_incarnation(self._rank)
        model = self._model
        identity = EngineIdentity(
            self.incarnation, self._rank, "test", "", "0", model.fingerprint, model.tokenizer_hash
        )
        link = EngineLink(self._link_config, identity, self._put, self._inbox.flush)
        link.start()
        link.set_phase(Phase.READY)
        settings = self._settings
        self._link = link  # a request can come, and a step end, as soon as the engine is announced
        link.announce_ready(
            Ready(
                settings.block_size,
                self._cache.num_blocks,
                settings.max_model_len,
                settings.max_num_seqs,
                max_queued_tokens=settings.max_queued_tokens,
                numerics=numerics_class(settings, 1),
            )
        )

    def _put(self, event: object) -> None:
        if isinstance(event, Received):
            self._frontends.add(event.frontend)
        if isinstance(event, DrainSettled):
            self._settled.set()
        self._inbox.put(event)  # type: ignore[arg-type]
