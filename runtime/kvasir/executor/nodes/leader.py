"""The leader's connections to the other nodes of its engine.

When all members are prepared, each gets its Setup. From then on, if one is lost, fails or starts again, the engine
and all members end. A thread owns the sockets, so an idle engine notices losses too.
"""

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from kvasir.config.nodes import NodesConfig
from kvasir.config.process_settings import LinkConfig
from kvasir.config.resolve import ResolvedEngine
from kvasir.executor.nodes.addresses import common_address, interface_of, reached_at
from kvasir.executor.nodes.leader_socket import LeaderSocket, MemberRecord, Sender
from kvasir.executor.nodes.member_answers import Descriptions, MemberReplies
from kvasir.executor.nodes.node_messages import (
    Described,
    Failed,
    Frame,
    FromLeader,
    FromMember,
    Joined,
    Leaving,
    NodeGoodbye,
    NodeHeartbeat,
    NodeHello,
    NodeRefused,
    NodeTerms,
    Replies,
    Setup,
    WorkerNews,
)
from kvasir.executor.remote_workers import RemoteEvents
from kvasir.parallel.tcp_rendezvous import TcpRendezvous
from kvasir.process.failures import FailureError
from kvasir.process.seldom_log import SeldomLog
from kvasir.wire.heartbeats import HeartbeatClock, silent
from kvasir_contract.failure import Failure
from kvasir_contract.reasons import Reason

log = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 1.0
_SETUP_SECONDS: Final = 60.0


class Leader:
    """RemoteWorkers whose methods any thread may call."""

    def __init__(self, config: NodesConfig, link: LinkConfig, terms: NodeTerms) -> None:
        """Listen for members. Raises ConfigError for an address, keys or a port that cannot be used."""
        self.incarnation = secrets.token_hex(8)
        self.num_nodes = config.nnodes
        self.waits: Callable[[], None] = lambda: None
        self.drain: Callable[[], None] = lambda: None  # called in the leader's thread when a member is to end
        self._config = config
        self._terms = terms
        self._timeout = link.heartbeat_timeout
        self._socket = LeaderSocket(
            config, link, self.incarnation, self._on_message, self._on_refuse, self._on_lost
        )
        self._members: dict[int, MemberRecord] = {}
        self._by_identity: dict[bytes, MemberRecord] = {}
        self._broken: dict[bytes, str] = {}  # by identity: why sending to a member failed
        # not joined or not prepared; replaced as a whole
        self.missing = tuple(range(1, config.nnodes))
        self._changed = threading.Event()
        self._events: RemoteEvents | None = None
        self._replies = MemberReplies(self.missing)
        self._descriptions = Descriptions(
            lambda node, question: self._socket.post(partial(self._send_to, node, question))
        )
        self._seldom = SeldomLog(log)
        self._failure: Failure | None = None
        self.is_ending = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="nodes", daemon=True)
        self._thread.start()

    @property
    def waits_for(self) -> str:
        """Return the missing members as text; "" if all are prepared."""
        missing = self.missing
        if not missing or self._events is not None:
            return ""
        nodes = "node" if len(missing) == 1 else "nodes"
        return f"waits for {nodes} {', '.join(map(str, missing))} of {self._config.nnodes}"

    # ------------------------------------------------------------------------------- the start, in the main thread

    @contextmanager
    def begin(self, settings: ResolvedEngine, ranks_per_node: int, events: RemoteEvents) -> Iterator[TcpRendezvous]:
        self._replies.ranks_per_node = ranks_per_node
        if self.waits_for:
            log.info("%s", self.waits_for)
        while True:
            self._changed.clear()
            with suppress(_NotAll), self._listener() as listener:
                host, port = listener.getsockname()[:2]
                self._send_setups(settings, port, events)
                yield TcpRendezvous(host, port, interface_of(host), self.incarnation, listener.fileno())
                return
            self.waits()
            self._changed.wait(_WAIT_SECONDS)
            if self._failure is not None:
                raise FailureError(self._failure)

    @contextmanager
    def _listener(self) -> Iterator[socket.socket]:
        # Raises _NotAll while a member is missing.
        members = list(self._members.values())
        if self.missing or not members:
            raise _NotAll
        own = {member.name: reached_at(member.leader_address, member.address) for member in members}
        address = common_address(own)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server((address, 0), family=family) as listener:
            yield listener

    def _send_setups(self, settings: ResolvedEngine, port: int, events: RemoteEvents) -> None:
        # Raises _NotAll if a member has left meanwhile.
        sent: Future[bool] = Future()

        def send() -> None:
            if self.missing:
                sent.set_result(False)
                return
            self._events = events
            size = self._replies.ranks_per_node
            for node, member in self._members.items():
                self._send(member, Setup(settings, node * size, size, port))
            sent.set_result(True)

        self._socket.post(send)
        if not sent.result(_SETUP_SECONDS):
            raise _NotAll

    # ------------------------------------------------------------------------------------------ frames and replies

    def write(self, frame: bytes) -> None:
        self._socket.post(partial(self._send_all, Frame(frame)))

    def read(self, seconds: float | None) -> list[bytes]:
        return self._replies.read(seconds)

    def silent_ranks(self) -> list[int]:
        return self._replies.silent_ranks()

    def describe(self, ranks: Iterable[int]) -> str:
        by_node: dict[int, list[int]] = {}
        for rank in ranks:
            by_node.setdefault(rank // self._replies.ranks_per_node, []).append(rank)
        return self._descriptions.ask(by_node)

    # --------------------------------------------------------------------------------------------------------- end

    def dismiss(self, reason: str) -> None:
        self.is_ending = True
        self._socket.post(partial(self._send_all, NodeGoodbye(reason)))
        self._replies.interrupt()

    def close(self, reason: str) -> None:
        """Send a last message and release the port. May be called more than once."""
        if not self._closed:
            self.dismiss(reason)
            self._closed = True
            self._socket.post(lambda: None)
            self._thread.join(timeout=_WAIT_SECONDS)

    # -------------------------------------------------------------------------------------- the leader's thread

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            log.exception("the connections to the other nodes have failed")
            text = f"the connections to the other nodes have failed: {error!r}"
            failure = self._failure = Failure(Reason.CRASH_LOOPING, text)
            self._changed.set()
            self._replies.interrupt()
            if self._events is not None:
                self._events.worker_failed(failure, text, raised=False)
        finally:
            self._socket.close()

    def _serve(self) -> None:
        clock = HeartbeatClock(self._timeout, time.monotonic())
        while not self._closed:
            self._socket.wait(clock.due)
            if (now := time.monotonic()) >= clock.due:
                self._tick(now, clock.tick(now))
            self._lose_broken()

    def _tick(self, now: float, late: float) -> None:
        for member, reason in silent(list(self._members.values()), self._timeout, now, late):
            self._lose(member, reason)
        self._send_all(NodeHeartbeat())

    def _on_lost(self) -> None:
        # ZMQ does not report whose connection broke: sending to that member fails.
        self._send_all(NodeHeartbeat())

    def _on_refuse(self, text: str) -> None:
        self._seldom.warning(text)

    def _on_message(self, peer: Sender, incarnation: str, message: FromMember) -> None:
        if isinstance(message, NodeHello):
            self._on_hello(peer, message)
            return
        member = self._by_identity.get(peer.identity)
        if member is None or incarnation != self.incarnation:
            self._refuse(peer, f"it is not a member of this incarnation ({self.incarnation}) of node 0")
            return
        member.last_seen = time.monotonic()
        match message:
            case Replies(bodies):
                self._replies.put(member.node_rank, bodies)
            case WorkerNews(rank, news) if self._events is not None:
                self._events.worker_news(rank, news)
            case Failed():
                self._on_failed(member, message)
            case Leaving():
                log.info("%s is to end: the engine finishes its requests, then all nodes end", member.name)
                self.drain()
            case Described(question, text):
                self._descriptions.put(question, f"{member.name}: {text}")

    def _on_failed(self, member: MemberRecord, failed: Failed) -> None:
        text = f"{member.name}: {failed.message}"
        if self._events is None:
            log.warning("%s; this node waits until it is started again", text)
        else:
            member.has_failed = True
            self._events.worker_failed(Failure(failed.reason, text), text, failed.raised)

    def _on_hello(self, peer: Sender, hello: NodeHello) -> None:
        node = hello.node_rank
        if not 1 <= node < self._config.nnodes:
            self._refuse(peer, f"--node-rank {node} is not a member of {self._config.nnodes} nodes")
        elif difference := self._terms.difference(hello.terms):
            self._refuse(peer, f"node {node} does not fit to node 0: {difference}")
        else:
            self._admit(peer, hello)

    def _admit(self, peer: Sender, hello: NodeHello) -> None:
        member = self._members.get(hello.node_rank)
        if member is not None and member.identity != peer.identity:
            if self._events is not None:
                self._lose(member, "another process has joined in its place: it was started again")
                return
            self._forget(member, "another process has joined in its place")
            self._refuse(Sender(member.identity, member.address), "another process has joined as this node")
            member = None
        if member is None:
            member = MemberRecord(peer.identity, hello.node_rank, peer.address, hello.leader_address)
            self._members[member.node_rank] = self._by_identity[peer.identity] = member
            log.info("%s has joined", member.name)
        member.last_seen = time.monotonic()
        member.prepared = hello.prepared
        self._count()
        self._send(member, Joined())

    def _refuse(self, peer: Sender, reason: str) -> None:
        self._seldom.warning(f"rejected a node at {peer.address}: {reason}")
        self._socket.send(peer.identity, NodeRefused(reason))

    def _lose(self, member: MemberRecord, how: str) -> None:
        events = self._events
        if events is None:
            self._forget(member, how)
        elif not member.has_failed:
            member.has_failed = True
            text = f"{member.name} is lost: {how}"
            events.worker_failed(Failure(Reason.CRASH_LOOPING, text), text, raised=False)

    def _forget(self, member: MemberRecord, how: str) -> None:
        # Nothing runs yet: wait for the member again.
        log.warning("%s has left: %s", member.name, how)
        del self._members[member.node_rank], self._by_identity[member.identity]
        self._count()

    def _count(self) -> None:
        members = self._members
        ready = {node for node, member in members.items() if member.prepared}
        self.missing = tuple(node for node in range(1, self._config.nnodes) if node not in ready)
        self._changed.set()

    def _send_all(self, message: FromLeader) -> None:
        for member in list(self._members.values()):
            self._send(member, message)

    def _send_to(self, node: int, message: FromLeader) -> None:
        if (member := self._members.get(node)) is not None:
            self._send(member, message)

    def _send(self, member: MemberRecord, message: FromLeader) -> None:
        if (problem := self._socket.send(member.identity, message)) is not None:
            self._broken[member.identity] = problem

    def _lose_broken(self) -> None:
        # The member's messages come first: one may have the cause of its end.
        if not self._broken:
            return
        self._socket.receive_all()
        broken, self._broken = self._broken, {}
        for identity, problem in broken.items():
            if (member := self._by_identity.get(identity)) is not None:
                self._lose(member, problem)


class _NotAll(Exception):
    pass
