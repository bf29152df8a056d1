import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from kvasir.wire.peer import TRANSITIONS, LinkProblem, Peer, PeerState
from kvasir.wire.reactor import Reactor

TIMEOUT = 5.0
RETRY = (0.5, 2.0)
GREETED, AGREED, PROBED = [b"greeting"], [b"agreed"], [b"probing"]


class Side:
    def __init__(self) -> None:
        self.reactor = Reactor()
        self.router = self.reactor.context.socket(zmq.ROUTER)
        self.router.linger = 0
        self.router.rcvtimeo = 10_000
        self.port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.received: list[list[bytes]] = []
        self.lost: list[tuple[str, str]] = []
        self.peer = Peer(
            "server", TIMEOUT, RETRY, self.received.append, lambda *loss: self.lost.append(loss), self._beat
        )

    def open(self, **options: Any) -> None:
        self.peer.open(self.reactor, f"tcp://127.0.0.1:{self.port}", None, **options)

    def agree(self) -> None:
        self.open()
        assert self.heard() == GREETED
        assert self.peer.agree("server-1")

    def heard(self) -> list[bytes]:
        self.identity, *frames = self.router.recv_multipart()
        return frames

    def until(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + 10
        while not holds():
            assert time.monotonic() < end
            self.reactor.wait(0.1)

    def close(self) -> None:
        self.peer.close()
        self.router.close()
        self.reactor.close()

    def _beat(self, state: PeerState) -> None:
        self.peer.send([state.name.lower().encode()])


@pytest.fixture
def side() -> Iterator[Side]:
    side = Side()
    yield side
    side.close()


def enter(side: Side, state: PeerState) -> None:
    """Bring a peer into a state, by the shortest way."""
    if state is PeerState.CLOSED:
        return
    side.open(state=PeerState.PROBING if state is PeerState.PROBING else PeerState.GREETING)
    if state is PeerState.AGREED:
        side.peer.agree("server-1")
    elif state is PeerState.REFUSED:
        side.peer.refuse("another model", 100.0)


@pytest.mark.parametrize("after", [PeerState.GREETING, PeerState.AGREED, PeerState.REFUSED])
@pytest.mark.parametrize("before", list(PeerState))
def test_peer_takes_only_transitions_of_the_table(side: Side, before: PeerState, after: PeerState) -> None:
    enter(side, before)
    if after is PeerState.AGREED:
        side.peer.agree("server-2")
    elif after is PeerState.REFUSED:
        side.peer.refuse("another model")
    else:
        side.peer.greet()
    assert side.peer.state is (after if after in TRANSITIONS[before] else before)
    assert bool(side.peer.server) == (side.peer.state is PeerState.AGREED)


def test_peer_greets_until_agreed_and_then_beats(side: Side) -> None:
    side.open()
    now = time.monotonic()
    side.peer.tick(now + 1, 0.0)
    assert [side.heard(), side.heard()] == [GREETED, GREETED]
    assert side.peer.agree("server-1")
    side.peer.tick(now + 2, 0.0)
    assert side.heard() == AGREED
    side.router.send_multipart([side.identity, b"a message"])
    side.until(lambda: side.received)
    assert (side.received, side.lost, side.peer.problem) == ([[b"a message"]], [], None)


def test_peer_probes_without_being_agreed(side: Side) -> None:
    side.open(state=PeerState.PROBING)
    assert not side.peer.agree("server-1")
    assert side.heard() == PROBED


@pytest.mark.parametrize("agreed", [False, True])
def test_peer_loses_a_silent_server_unless_it_was_blocked(side: Side, agreed: bool) -> None:
    side.open()
    if agreed:
        side.peer.agree("server-1")
    now = time.monotonic()
    side.peer.tick(now + TIMEOUT + 4, 4.1)
    assert not side.lost, "the peer was blocked for 4 s of these"
    side.peer.tick(now + 2 * TIMEOUT + 4, 0.0)
    [(server, reason)] = side.lost
    assert server == ("server-1" if agreed else "")
    assert reason.startswith("it has been silent for 9.9")
    assert side.peer.state is PeerState.CLOSED


def test_peer_reports_a_connection_that_broke(side: Side) -> None:
    side.agree()
    side.router.close()
    side.until(lambda: side.lost)
    assert side.lost == [("server-1", "the connection broke")]


def test_peer_waits_twice_as_long_before_each_attempt(side: Side) -> None:
    side.router.close()
    waits = []
    for _ in range(4):
        side.open()
        side.until(lambda: side.peer.state is PeerState.CLOSED)
        waits.append(side.peer.retry_at - time.monotonic())
    assert waits == pytest.approx([0.5, 1.0, 2.0, 2.0], abs=0.3)
    assert side.peer.problem == LinkProblem("server: nothing answers there yet")


def test_peer_is_tried_soon_after_an_agreement(side: Side) -> None:
    for _ in range(3):
        side.agree()
        side.peer.drop("it left", logging.INFO)
        assert side.peer.retry_at - time.monotonic() < RETRY[0]


def test_peer_greets_a_refusing_server_again_later(side: Side) -> None:
    side.open()
    assert side.heard() == GREETED
    side.peer.refuse("another model", 30.0)
    assert side.peer.problem == LinkProblem("server: another model", refused=True)
    side.peer.tick(side.peer.retry_at - 0.1, 0.0)
    assert side.peer.state is PeerState.REFUSED
    side.peer.tick(side.peer.retry_at, 0.0)
    assert (side.peer.state, side.heard()) == (PeerState.GREETING, GREETED)


def test_peer_reads_the_last_messages_before_it_is_lost(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    side.agree()
    side.router.send_multipart([side.identity, b"why I end"])

    def full(frames: list[bytes]) -> None:
        while not side.peer._socket._socket.poll(1000):  # type: ignore[union-attr]
            pass
        raise zmq.Again

    monkeypatch.setattr(side.peer._socket, "send", full)
    side.peer.beat()
    assert side.received == [[b"why I end"]]
    assert side.lost[0][1].startswith("nothing can be sent to it")
