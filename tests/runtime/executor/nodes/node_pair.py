"""A leader and members in one process, without workers: only their connections are real."""

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq

from kvasir.config.nodes import NodesConfig
from kvasir.config.process_settings import LinkConfig
from kvasir.executor.nodes.addresses import own_address
from kvasir.executor.nodes.leader import Leader
from kvasir.executor.nodes.leader_connection import LeaderConnection, LeaderEvent
from kvasir.executor.nodes.node_messages import FromLeader, FromMember, NodeTerms, decode_from_leader, encode
from kvasir.executor.processes.worker_messages import FromWorker
from kvasir_contract.failure import Failure
from runtime.worker.driver import engine_settings

WAIT = 20.0
TERMS = NodeTerms(1, "0.1", "uid", 0, 2, 2, 1, False, "model")
FAST = LinkConfig(heartbeat_timeout=1.0)
SLOW = LinkConfig(heartbeat_timeout=WAIT)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def node(port: int, node_rank: int = 0, nnodes: int = 2, host: str = "127.0.0.1") -> NodesConfig:
    return NodesConfig(nnodes, node_rank, host, port)


def address_for_others() -> str | None:
    """Return the address by which other machines reach this one; None without a network."""
    try:
        return own_address("192.0.2.1")  # an address for documentation: only the route to it counts
    except OSError:
        return None


def keyed(directory: Path) -> LinkConfig:
    return LinkConfig(link_keys=str(directory), heartbeat_timeout=WAIT)


class Events:
    """RemoteEvents that a test waits for."""

    def __init__(self) -> None:
        self.news: queue.SimpleQueue[tuple[int, FromWorker]] = queue.SimpleQueue()
        self.failures: queue.SimpleQueue[tuple[Failure, bool]] = queue.SimpleQueue()

    def worker_news(self, rank: int, message: FromWorker) -> None:
        self.news.put((rank, message))

    def worker_failed(self, failure: Failure, text: str, raised: bool) -> None:
        self.failures.put((failure, raised))

    def failure(self) -> str:
        return self.failures.get(timeout=WAIT)[0].message


@contextmanager
def leading(port: int, link: LinkConfig = SLOW, nnodes: int = 2, terms: NodeTerms = TERMS) -> Iterator[Leader]:
    leader = Leader(node(port, nnodes=nnodes), link, terms)
    try:
        yield leader
    finally:
        leader.close("the test ends")


class Member:
    def __init__(self, port: int, node_rank: int, nnodes: int, link: LinkConfig, terms: NodeTerms) -> None:
        self.events: queue.SimpleQueue[LeaderEvent] = queue.SimpleQueue()
        self.frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.connection = LeaderConnection(
            node(port, node_rank, nnodes), link, terms, self.events.put, self.frames.put
        )
        self.connection.start()

    def event(self) -> Any:
        return self.events.get(timeout=WAIT)


@contextmanager
def member(
    port: int,
    node_rank: int = 1,
    nnodes: int = 2,
    link: LinkConfig = SLOW,
    terms: NodeTerms = TERMS,
    prepared: bool = True,
) -> Iterator[Member]:
    result = Member(port, node_rank, nnodes, link, terms)
    if prepared:
        result.connection.prepared()
    try:
        yield result
    finally:
        result.connection.close()


def begin(leader: Leader, events: Events) -> None:
    """Wait for the members, and send the Setup. Raises TimeoutError."""
    late = threading.Event()
    timer = threading.Timer(WAIT, late.set)
    timer.start()

    def waits() -> None:
        if late.is_set():
            raise TimeoutError(leader.waits_for)

    leader.waits = waits
    with leader.begin(engine_settings(), 1, events) as rendezvous:
        assert rendezvous.host == "127.0.0.1"
        assert rendezvous.interface == "lo"
    timer.cancel()


class RawMember:
    """A socket that sends only what the test sends: it is a member that hangs, or a process of another start."""

    def __init__(self, port: int) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.rcvtimeo = int(WAIT * 1000)
        self._socket.connect(f"tcp://127.0.0.1:{port}")

    def send(self, incarnation: str, message: FromMember) -> None:
        self._socket.send_multipart(encode(incarnation, message))

    def send_frames(self, frames: list[bytes]) -> None:
        self._socket.send_multipart(frames)

    def receive(self, kind: type[FromLeader]) -> tuple[str, Any]:
        while True:
            incarnation, message = decode_from_leader(self._socket.recv_multipart())
            if isinstance(message, kind):
                return incarnation, message

    def close(self) -> None:
        self._context.destroy(linger=0)
