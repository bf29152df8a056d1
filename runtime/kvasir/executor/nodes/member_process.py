"""The process of a member: `kvasir engine … --node-rank R` with R above 0.

It joins the leader, starts its ranks' workers, and relays frames and replies. It fails when a worker fails or the
leader is lost; started again, it joins the leader's next incarnation.
"""

import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest

from kvasir.config.settings import EngineConfig
from kvasir.executor.nodes.addresses import interface_of, own_address
from kvasir.executor.nodes.leader_connection import Begin, LeaderConnection, LeaderEvent, LeaderLost, Rejected
from kvasir.executor.nodes.member_status import MemberCollector, MemberStatus
from kvasir.executor.nodes.node_messages import Describe, Described, Failed, Leaving, NodeTerms, Replies, WorkerNews
from kvasir.executor.processes.local_workers import LocalWorkers
from kvasir.executor.processes.worker_messages import FromWorker, Loaded, Loading
from kvasir.executor.shared_memory.ring import PeerLostError, RingError, RingInterruptedError
from kvasir.executor.shared_memory.segment import SharedMemoryError
from kvasir.hub.located_model import fetch_weights, read_model
from kvasir.hub.model_info import ModelInfo
from kvasir.parallel.tcp_rendezvous import TcpRendezvous
from kvasir.process.failures import FailureError, end, failure_of, log_failure
from kvasir.process.ops_server import OpsServer
from kvasir.process.process_setup import raise_open_files_limit, set_process_title, wake_after_signals
from kvasir_contract.endpoints import KILL_MARGIN_SECONDS
from kvasir_contract.exits import ExitCode
from kvasir_contract.failure import Failure
from kvasir_contract.logs import setup_logging
from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason

log = logging.getLogger(__name__)

_STOP_SECONDS: Final = 1.0
_DRAIN_MARGIN_SECONDS: Final = KILL_MARGIN_SECONDS / 2  # beyond the engine's drain
_WRITE_SECONDS: Final = 5.0  # the leader sends fewer frames ahead than the ring holds


def run_member(config: EngineConfig) -> int:
    """Work for the leader until both end, report a failure, and return the exit code.

    Main thread only: it takes over SIGTERM and SIGINT, and starts processes.
    """
    process = config.process
    name = f"engine-{config.parallel.data_parallel_rank}-node-{config.nodes.node_rank}"
    setup_logging(name, process.log_level, process.log_format)
    set_process_title(f"engine rank {config.parallel.data_parallel_rank} node {config.nodes.node_rank}")
    raise_open_files_limit()
    return end(MemberProcess(config, name).run())


class _Stopped(BaseException):
    """SIGTERM or SIGINT. Not an Exception, which libraries would catch."""


class _Leave:
    """SIGTERM while the engine works: it finishes its requests first."""


class _WorkerFailed(FailureError):
    """A worker of this node has failed; the leader has been informed."""


class MemberProcess:
    def __init__(self, config: EngineConfig, name: str) -> None:
        self._config = config
        self._node_rank = config.nodes.node_rank
        self._status = MemberStatus(
            f"{name}-{secrets.token_hex(4)}", config.parallel.data_parallel_rank, config.link.heartbeat_timeout
        )
        # None wakes the main thread
        self._events: SimpleQueue[LeaderEvent | _WorkerFailed | _Leave | None] = SimpleQueue()
        self._ops: OpsServer | None = None
        self._leader: LeaderConnection | None = None
        self._workers: LocalWorkers | None = None
        self._loading: dict[int, Loading] = {}
        self._loaded: set[int] = set()
        self._ending = False
        # End by then, even before the engine. None: not asked to end.
        self._leave_until: float | None = None

    def run(self) -> Failure | None:
        """Work, and end everything; return the failure of the member."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        wake_after_signals(lambda: self._events.put(None))
        failure = None
        try:
            self._serve()
        except _Stopped:
            log.info("stopped")
        except Exception as error:
            log_failure(log, error, f"node {self._node_rank} failed in phase {self._status.phase}")
            failure = failure_of(error)
            self._status.enter(Phase.FAILED, failure.message)
            if self._leader is not None and not isinstance(error, _WorkerFailed):
                self._leader.send(Failed(failure.reason, failure.message, raised=False))
        self._end()
        return failure

    def _serve(self) -> None:
        config = self._config
        registry = CollectorRegistry()
        names = config.model.served_model_name
        registry.register(
            MemberCollector(self._status, names[0] if names else config.model.source, self._node_rank)
        )
        self._ops = OpsServer(config.ops, self._status, partial(generate_latest, registry))
        model = read_model(config.model)
        leader = self._leader = LeaderConnection(
            config.nodes, config.link, NodeTerms.of(config, model), self._events.put, self._on_frame
        )
        self._status.problem = lambda: leader.problem
        self._status.is_refused = lambda: leader.is_refused
        leader.start()
        self._status.enter(Phase.LOADING)
        model = fetch_weights(model, config.model, config.device.load_format, self._status.advance)
        leader.prepared()
        self._status.wait()
        self._handle_events(leader, model)

    def _handle_events(self, leader: LeaderConnection, model: ModelInfo) -> None:
        while True:
            match self._next_event():
                case Begin() as begin:
                    self._start(leader, model, begin)
                case Describe(question, ranks) if self._workers is not None:
                    leader.send(Described(question, self._workers.describe(ranks)))
                case Rejected(reason):
                    raise FailureError(Failure(Reason.LINK_REFUSED, reason))
                case _Leave():
                    self._leave(leader)
                case LeaderLost(reason) if self._leave_until is not None:
                    log.info("stopped: %s", reason)
                    return
                case LeaderLost(reason):
                    raise FailureError(Failure(Reason.CRASH_LOOPING, reason))
                case _WorkerFailed() as error:
                    raise error

    def _next_event(self) -> "LeaderEvent | _WorkerFailed | _Leave | None":
        until = self._leave_until
        try:
            return self._events.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        except Empty:
            log.warning("the engine has not finished its requests in time")
            raise _Stopped from None

    def _leave(self, leader: LeaderConnection) -> None:
        # The end of the engine ends this node.
        timeout = self._config.process.drain_timeout
        log.info("the engine has %.0f s to finish its requests", timeout)
        self._leave_until = time.monotonic() + timeout + _DRAIN_MARGIN_SECONDS
        self._status.enter(Phase.DRAINING)
        leader.send(Leaving())

    def _start(self, leader: LeaderConnection, model: ModelInfo, begin: Begin) -> None:
        # In the main thread: the kernel kills workers with the thread that started them.
        self._status.enter(Phase.LOADING)
        setup = begin.setup
        ranks = range(setup.first_rank, setup.first_rank + setup.num_ranks)
        log.info("starts the workers %d to %d", ranks.start, ranks.stop - 1)
        interface = interface_of(own_address(begin.leader_ip))
        workers = self._workers = LocalWorkers(ranks, setup.settings, model, self._on_news, self._on_failure)
        workers.start(TcpRendezvous(begin.leader_ip, setup.store_port, interface, begin.incarnation))
        threading.Thread(target=self._relay_replies, args=[leader, workers], name="replies", daemon=True).start()

    # ------------------------------------------------------------------------------- callbacks of other threads

    def _on_news(self, rank: int, message: FromWorker) -> None:
        if isinstance(message, Loading):
            self._loading[rank] = message
            loading = list(self._loading.values())
            self._status.advance(sum(each.done for each in loading), sum(each.total for each in loading))
        elif isinstance(message, Loaded):
            self._loaded.add(rank)
            if self._workers is not None and len(self._loaded) == len(self._workers.ranks):
                self._status.enter(Phase.READY)
        if self._leader is not None:
            self._leader.send(WorkerNews(rank, message))

    def _on_failure(self, failure: Failure, text: str, raised: bool) -> None:
        # Only the first failure counts.
        if self._ending:
            return
        self._ending = True
        if self._workers is not None:
            self._workers.kill()
        if self._leader is not None:
            self._leader.send(Failed(failure.reason, failure.message, raised))
        log.error("%s; all workers of this node are killed", text)
        self._events.put(_WorkerFailed(failure))

    def _on_frame(self, body: bytes) -> None:
        # In the connection's thread.
        workers = self._workers
        assert workers is not None, "a frame came before the Setup"
        self._status.took(body[0])
        try:
            workers.channel.requests.write(body, _WRITE_SECONDS)
        except (PeerLostError, RingInterruptedError) as error:
            log.debug("a frame was not written: %s", error)  # the watching thread reports the worker's end
        except Exception as error:
            # A later frame would take this one's replies.
            text = f"a frame of {len(body)} bytes did not reach the workers of this node: {error}"
            reason = Reason.OUT_OF_MEMORY if isinstance(error, SharedMemoryError) else Reason.CRASH_LOOPING
            self._on_failure(Failure(reason, text), text, raised=False)

    def _relay_replies(self, leader: LeaderConnection, workers: LocalWorkers) -> None:
        try:
            while True:
                bodies = workers.channel.replies.read()
                self._status.answered()
                leader.send(Replies(bodies))
        except RingError as error:
            log.debug("no more replies: %s", error)

    # --------------------------------------------------------------------------------------------------------- end

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """End with the engine, after its requests; at once for SIGINT or without a working engine.

        The same signal again ends the process without cleaning up.
        """
        signal.signal(number, signal.SIG_DFL)
        if self._ending:
            return
        if number == signal.SIGTERM and self._status.phase is Phase.READY:
            self._events.put(_Leave())  # this thread may hold a lock of the connection
            return
        # A library that waits for its threads, of a download for example, would hold up the end.
        signal.signal(signal.SIGALRM, lambda *_: os._exit(ExitCode.OK))
        signal.setitimer(signal.ITIMER_REAL, _STOP_SECONDS)
        raise _Stopped

    def _end(self) -> None:
        self._ending = True
        if self._workers is not None:
            self._workers.kill()
        closers: list[Callable[[], None]] = []
        if self._leader is not None:
            closers.append(self._leader.close)
        if self._workers is not None:
            closers.append(self._workers.shutdown)
        if self._ops is not None:
            closers.append(self._ops.close)
        for close in closers:
            close()
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        log.info("ended")
