"""EngineProcess: from settings to a serving loop and back.

The start fails early: first the ops port, then config.json, the link's Hello while torch is imported, the weights,
KV memory, a first step, and Ready.
"""

import atexit
import gc
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

from prometheus_client import CollectorRegistry, generate_latest

from kvasir.config.hardware.machine import process_age
from kvasir.config.resolve import ResolvedEngine
from kvasir.config.settings import EngineConfig
from kvasir.engine.build import build_core, numerics_class, prepare_workers, ready_message, resolve_settings
from kvasir.engine.core import EngineCore
from kvasir.engine.engine_collector import EngineCollector
from kvasir.engine.handover.exchange import Exchange, kv_class, start_exchange
from kvasir.engine.handover.hand_over import HandOver
from kvasir.engine.health.black_box import BlackBox, open_box
from kvasir.engine.health.engine_status import EngineStatus
from kvasir.engine.health.step_watchdog import StepWatchdog
from kvasir.engine.inbox import Inbox
from kvasir.engine.loop import EngineLoop
from kvasir.engine.waves import SharedExpertsGroup
from kvasir.executor.executor import Executor
from kvasir.executor.executor_for import executor_for
from kvasir.executor.nodes.lead import lead
from kvasir.executor.nodes.leader import Leader
from kvasir.hub.located_model import fetch_weights, read_model
from kvasir.hub.model_info import ModelInfo
from kvasir.layers.kv import KVCacheConfig
from kvasir.link.engine_end.engine_link import EngineIdentity, EngineLink, new_incarnation
from kvasir.link.protocol import Dead, FailedStep, Goodbye, Progress
from kvasir.process.failures import end, failure_of, log_failure
from kvasir.process.ops_server import OpsServer
from kvasir.process.process_setup import raise_open_files_limit, set_process_title, wake_after_signals
from kvasir.process.seldom_log import SeldomLog
from kvasir.version import __version__
from kvasir.wire.death_watch import DeathWatch, start_death_watch
from kvasir_contract.exits import ExitCode
from kvasir_contract.failure import Failure
from kvasir_contract.logs import setup_logging
from kvasir_contract.phases import Phase

log = logging.getLogger(__name__)

LAUNCHING = "Launching"  # from the spawn to the first line of this file
STOP_SECONDS = 1.0
PROGRESS_INTERVAL = 10.0


def run_engine(config: EngineConfig) -> int:
    """Serve until SIGTERM or SIGINT and return the exit code. In the main thread; takes over both signals."""
    setup_logging(
        f"engine-{config.parallel.data_parallel_rank}", config.process.log_level, config.process.log_format
    )
    set_process_title(f"engine rank {config.parallel.data_parallel_rank}")
    raise_open_files_limit()
    code = end(EngineProcess(config).run())
    if config.shares_experts or config.lora.enable_lora:
        # Python's end would abort a thread that waits in gloo, and wait for one that downloads an adapter.
        logging.shutdown()
        os._exit(code)
    return code


class _Stopped(BaseException):
    """Stopped with nothing to drain. A BaseException: libraries catch Exceptions and go on."""


class EngineProcess:
    def __init__(self, config: EngineConfig) -> None:
        rank = config.parallel.data_parallel_rank
        names = config.model.served_model_name
        self._config = config
        self._status = EngineStatus(
            new_incarnation(rank),
            rank,
            config.link.heartbeat_timeout,
            slow_step=config.trace.slow_step or math.inf,
        )
        self._black_box = BlackBox(self._status.incarnation)
        self._collector = EngineCollector(self._status, names[0] if names else config.model.source)
        self._ops: OpsServer | None = None
        self._death_watch: DeathWatch | None = None
        self._link: EngineLink | None = None
        self._executor: Executor | None = None
        self._leader: Leader | None = None  # with several nodes
        self._group: SharedExpertsGroup | None = None
        self._exchange: Exchange | None = None
        self._kv_address = ""
        self._loop: EngineLoop | None = None
        self._watchdog: StepWatchdog | None = None
        self._stop_asked = False
        self._starting = False  # a signal may raise in the main thread
        age = self._status.startup_seconds[LAUNCHING] = process_age()
        self._spawned = time.monotonic() - age
        self._progress_logged = time.monotonic()
        self._waits_log = SeldomLog(log)

    def run(self) -> Failure | None:
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        wake_after_signals(self._wake)
        # After the exit functions of libraries, when Python has dropped its handlers, SIGALRM would kill.
        atexit.register(signal.setitimer, signal.ITIMER_REAL, 0.0)
        try:
            self._starting = True
            try:
                self._serve()
            finally:
                self._starting = False
        except _Stopped:
            log.info("stopped before it was ready")
        except Exception as error:
            log_failure(log, error, f"the engine failed in phase {self._status.phase}")
            failure = failure_of(error)
            try:
                self._end(Dead(failure.message, self._black_box.step))
            except Exception:
                log.exception("the engine could not end in order")  # the first failure is the cause
            return failure
        self._black_box.clear()
        self._end(Goodbye())
        return None

    def _serve(self) -> None:
        with self._phase(Phase.STARTING):
            registry = CollectorRegistry()
            registry.register(self._collector)
            self._ops = OpsServer(self._config.ops, self._status, partial(generate_latest, registry))
            model = self._read_model()
            box = open_box(self._config.trace.black_box)
            crashed = None if box is None else box.last or FailedStep("")
            self._black_box = BlackBox(self._status.incarnation, box)
            self._death_watch = start_death_watch()
            inbox = Inbox()
            link = self._link = EngineLink(
                self._config.link,
                self._identity(model),
                inbox.put,
                inbox.flush,
                step_limit=self._status.step_limit,
                crashed=crashed,
                running=lambda: self._black_box.step,
                death_watch=self._death_watch,
            )
            self._status.link_problem = lambda: link.problem
            self._status.links = lambda: link.accepted
            self._status.unknown_messages = lambda: link.unknown_messages
            link.start()
            self._leader = self._lead(model)
            settings = resolve_settings(self._config, model)
        with self._phase(Phase.LOADING):
            model = fetch_weights(model, self._config.model, settings.load_format, self._show_progress)
            executor = self._load(settings, model, inbox)
        with self._phase(Phase.WARMING):
            group = self._group
            settings, cache = prepare_workers(executor, settings, asked=self._config.model.max_model_len)
            hand_over = self._collector.hand_over = HandOver()
            core = self._collector.core = build_core(
                settings, model, cache, executor, [hand_over], inbox.wake_request
            )
            core.trace, core.black_box = self._status.trace, self._black_box
            if executor.max_in_flight == 1 and group is None:  # a group's steps include waits for other engines
                self._status.step_limit.begin(settings.max_num_batched_tokens)
            self._open_hand_over(hand_over, core, settings, model, cache, inbox)
            inbox.open(core.ingest)
            waves = None if group is None else group.waves
            drain_timeout = self._config.process.drain_timeout
            self._loop = EngineLoop(
                core, link, inbox, self._status, drain_timeout, waves=waves, hand_over=hand_over
            )
            gc.collect()
            gc.freeze()  # the start's objects live on: later collections skip them
        self._check_shutdown()
        if self._config.trace.slow_step:
            self._watchdog = StepWatchdog(self._status.trace, self._status.rank, executor.where)
        self._announce(link, settings, cache.num_blocks, model.weights)
        self._loop.run()

    # ------------------------------------------------------------------------------------------------- start-up

    @contextmanager
    def _phase(self, phase: Phase) -> Iterator[None]:
        self._check_shutdown()
        began = time.monotonic()
        self._status.enter(phase)
        if self._link is not None:
            self._link.set_phase(phase)
        yield
        seconds = self._status.startup_seconds[phase] = time.monotonic() - began
        log.info("%s took %.2f s", phase, seconds)

    def _read_model(self) -> ModelInfo:
        return read_model(self._config.model)

    def _identity(self, model: ModelInfo) -> EngineIdentity:
        return EngineIdentity(
            incarnation=self._status.incarnation,
            rank=self._status.rank,
            node=socket.gethostname(),
            service=self._config.link.service_uid,
            version=__version__,
            fingerprint=model.fingerprint,
            tokenizer_hash=model.tokenizer_hash,
        )

    def _load(self, settings: ResolvedEngine, model: ModelInfo, inbox: Inbox) -> Executor:
        group = None
        executor: Executor
        if self._config.shares_experts:
            group = self._group = SharedExpertsGroup(self._config, settings, model, self._wait_for_engine)
            executor = group.new_executor(settings, model, inbox)
        else:
            executor = executor_for(settings, model, remote=self._leader)
        self._executor = executor
        executor.start(self._show_progress, inbox.fail)
        if group is not None:
            group.wait_until_loaded()
        return executor

    def _lead(self, model: ModelInfo) -> Leader | None:
        config = self._config
        if config.nodes.nnodes == 1:
            return None
        leader = lead(config, model, self._wait_for_nodes, self._drain)
        self._status.waits_for = lambda: leader.waits_for
        return leader

    def _wait_for_nodes(self) -> None:
        # no limit: a node may take any time to load
        self._check_shutdown()
        self._status.beat(busy=True)

    def _wait_for_engine(self, text: str) -> None:
        # no limit: the other engine may download the weights
        self._check_shutdown()
        self._status.beat(busy=True)
        self._status.waits_for = lambda: text
        if text:
            self._waits_log.info(text)

    def _show_progress(self, done: int, total: int) -> None:
        self._check_shutdown()
        progress = Progress(done, total)
        self._status.advance(progress)
        if time.monotonic() - self._progress_logged >= PROGRESS_INTERVAL:
            self._progress_logged = time.monotonic()
            log.info("loaded %.2f of %.2f GB", done / 1e9, total / 1e9)
        if self._link is not None:
            self._link.set_phase(Phase.LOADING, progress)

    def _open_hand_over(
        self,
        hand_over: HandOver,
        core: EngineCore,
        settings: ResolvedEngine,
        model: ModelInfo,
        cache: KVCacheConfig,
        inbox: Inbox,
    ) -> None:
        def class_of(layout: str) -> str:
            hash_algorithm = settings.prefix_caching_hash_algo
            identity = f"{model.fingerprint} {model.weights}"
            return kv_class(identity, self._numerics(settings), cache, layout, hash_algorithm)

        incarnation = self._status.incarnation
        assert self._executor is not None
        started = start_exchange(self._config, incarnation, self._executor, cache, class_of, inbox.put_hand_over)
        if started is not None:
            self._exchange, self._kv_address = started
            hand_over.open(core.scheduler, self._exchange, serves=bool(self._kv_address))

    def _numerics(self, settings: ResolvedEngine) -> str:
        return numerics_class(settings, 1 if self._group is None else self._group.size)

    def _announce(self, link: EngineLink, settings: ResolvedEngine, num_blocks: int, weights: str) -> None:
        self._status.enter(Phase.READY)
        in_waves = self._group is not None
        link.announce_ready(
            ready_message(
                settings,
                num_blocks,
                self._numerics(settings),
                in_waves=in_waves,
                kv_address=self._kv_address,
                weights=weights,
            )
        )
        phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in self._status.startup_seconds.items())
        log.info(
            "Ready after %.2f s (%s): %d KV blocks of %d tokens, sequences of up to %d tokens",
            time.monotonic() - self._spawned,
            phases,
            num_blocks,
            settings.block_size,
            settings.max_model_len,
        )

    # ------------------------------------------------------------------------------------------------------- end

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Drain, or end the start at once; the same signal again ends the process."""
        signal.signal(number, signal.SIG_DFL)
        self._drain()
        if self._loop is None and self._starting:
            self._starting = False
            # Libraries that wait for their threads, as in a download, must not delay the end.
            signal.signal(signal.SIGALRM, lambda *_: os._exit(ExitCode.OK))
            signal.setitimer(signal.ITIMER_REAL, STOP_SECONDS)
            raise _Stopped

    def _drain(self) -> None:
        self._stop_asked = True
        if self._loop is not None:
            self._loop.drain()

    def _wake(self) -> None:
        if self._loop is not None:
            self._loop.wake()

    def _check_shutdown(self) -> None:
        if self._stop_asked:
            raise _Stopped

    def _end(self, last: Goodbye | Dead) -> None:
        if isinstance(last, Dead):
            self._status.enter(Phase.FAILED, last.reason)
        if self._link is not None:
            self._link.close(last)
        if self._death_watch is not None:
            self._death_watch.close()
        if self._collector.core is not None:
            self._collector.core.close()
        if self._exchange is not None:  # it reads and writes the KV cache
            self._exchange.close()
        if self._watchdog is not None:  # it asks the executor where workers are
            self._watchdog.close()
        if self._executor is not None:
            self._executor.shutdown()
        if self._leader is not None:
            self._leader.close(last.reason if isinstance(last, Dead) else "the engine ends")
        if self._ops is not None:
            self._ops.close()
        log.info("ended after %.1f s", time.monotonic() - self._spawned)
