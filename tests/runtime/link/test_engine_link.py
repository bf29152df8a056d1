import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
import zmq

from kvasir.config.process_settings import LinkConfig
from kvasir.link.engine_end.announced_engine import AnnouncedEngine
from kvasir.link.engine_end.engine_link import (
    EngineLink,
    LinkEvent,
    new_incarnation,
)
from kvasir.link.protocol import (
    PROTOCOL_VERSION,
    Abort,
    Dead,
    FinishReason,
    Goodbye,
    Heartbeat,
    Hello,
    Outputs,
    Ready,
    RefusalKind,
    Refused,
    Welcome,
)
from kvasir.wire.heartbeats import step_age_limit
from kvasir.wire.peer import LinkProblem
from kvasir.wire.sockets import QUEUE_MESSAGES
from kvasir_contract.phases import Phase
from runtime.link.bare_peers import BareFrontend
from runtime.link.peers import (
    PATIENCE,
    READY,
    STATS,
    engine,
    frontend_lost,
    identity,
    outputs,
    received,
    request,
)
from runtime.link.queued_link import QueuedLink

WELCOME = Welcome(PROTOCOL_VERSION, "frontend-a")


@pytest.fixture
def bare() -> Iterator[BareFrontend]:
    router = BareFrontend()
    yield router
    router.close()


def welcome(bare: BareFrontend, link: QueuedLink, name: str = "frontend-a") -> None:
    """Accept the engine, as far as its Ready."""
    bare.expect(Hello)
    bare.say(link.incarnation, Welcome(PROTOCOL_VERSION, name))
    assert bare.expect(Ready) == READY


def _wait(socket: zmq.Socket[bytes]) -> None:
    socket.poll(10_000)


def test_hello_is_repeated_until_it_is_answered(bare: BareFrontend) -> None:
    with engine(bare.address, silence=1.0) as link:
        hellos = [bare.expect(Hello) for _ in range(4)]
        assert {h.incarnation for h in hellos} == {link.incarnation}
        bare.say(link.incarnation, WELCOME)
        bare.expect(Ready)
        assert bare.hears_nothing_but(Heartbeat, 0.4)


def test_a_phase_that_changes_before_the_welcome_is_told(bare: BareFrontend) -> None:
    with engine(bare.address, ready=False) as link:
        assert bare.expect(Hello).phase is Phase.STARTING
        link.set_phase(Phase.WARMING)
        bare.say(link.incarnation, WELCOME)
        assert bare.expect(Hello).phase is Phase.WARMING


def test_outputs_go_to_the_frontend_of_the_request(bare: BareFrontend) -> None:
    with engine(bare.address) as link:
        welcome(bare, link)
        bare.say(link.incarnation, request("one"))
        bare.say(link.incarnation, Abort(["one"]))
        item = received(link)
        assert (item.frontend, item.message) == ("frontend-a", request("one"))
        assert received(link).message == Abort(["one"])
        link.send("frontend-unknown", outputs("never"))
        link.send("frontend-a", outputs("one"))
        assert bare.expect(Outputs) == outputs("one")


def test_outputs_leave_between_requests_that_take_long(bare: BareFrontend) -> None:
    """The engine prepares requests in the link's thread, and a long prompt takes it some milliseconds."""
    count, sent = 100, threading.Event()
    prepared: list[LinkEvent] = []

    def prepare(event: LinkEvent) -> None:
        if not prepared:
            assert sent.wait(PATIENCE)
            link.send("frontend-a", outputs("running"))
        prepared.append(event)
        time.sleep(0.01)

    config = LinkConfig(link=(bare.address,), heartbeat_timeout=10.0)
    link = EngineLink(config, identity(), prepare)
    link.announce_ready(READY)
    link.start()
    try:
        incarnation = bare.expect(Hello).incarnation
        bare.say(incarnation, WELCOME)
        bare.expect(Ready)
        for number in range(count):
            bare.say(incarnation, request(str(number)))
        sent.set()
        assert bare.expect(Outputs) == outputs("running")
        assert len(prepared) < count / 2
    finally:
        link.close(Goodbye())


def test_a_request_before_ready_is_answered_with_an_error(bare: BareFrontend) -> None:
    with engine(bare.address, ready=False) as link:
        bare.expect(Hello)
        bare.say(link.incarnation, WELCOME)
        bare.say(link.incarnation, request("early"))
        (answer,) = bare.expect(Outputs).outputs
        assert (answer.request_id, answer.finish_reason, answer.position) == ("early", FinishReason.ERROR, 0)
        assert "Starting" in answer.error
        assert answer.refusal is RefusalKind.UNAVAILABLE
        assert link.inbox.empty()


def test_frontend_that_starts_over_loses_its_requests(bare: BareFrontend) -> None:
    with engine(bare.address) as link:
        welcome(bare, link)
        for _ in range(3):  # one for each message that was on its way when the frontend took the engine for lost
            bare.say(link.incarnation, Refused("who are you?", retry=True))
        assert frontend_lost(link) == "frontend-a"
        welcome(bare, link)
        assert link.inbox.empty()


def test_a_refusal_for_good_is_told_and_not_repeated_at_once(
    bare: BareFrontend, caplog: pytest.LogCaptureFixture
) -> None:
    with engine(bare.address, silence=1.0) as link:
        bare.expect(Hello)
        bare.say(link.incarnation, Refused("another model", retry=False))
        assert bare.hears_nothing_but(Hello, 0.6)
        assert link.problem == LinkProblem(f"frontend at {bare.address}: another model", refused=True)
        assert "another model" in caplog.text
        while bare.socket.poll(0):
            bare.socket.recv_multipart()
        assert not bare.socket.poll(600)


def test_successor_of_a_refusing_frontend_is_greeted_at_once(bare: BareFrontend) -> None:
    with engine(bare.address) as link:
        bare.expect(Hello)
        bare.say(link.incarnation, Refused("another model", retry=False))
        bare.close()
        other = BareFrontend(bare.address)
        welcome(other, link)
        other.close()


@pytest.mark.parametrize("rubbish", [b"\xc1", b"", b"\x91\xa7Goodbye\x00"])
def test_a_frontend_that_sends_rubbish_is_lost_and_greeted_anew(bare: BareFrontend, rubbish: bytes) -> None:
    with engine(bare.address) as link:
        welcome(bare, link)
        bare.say(link.incarnation, rubbish)
        assert frontend_lost(link) == "frontend-a"
        welcome(bare, link)


def test_a_frontend_that_says_goodbye_is_lost_at_once(bare: BareFrontend) -> None:
    with engine(bare.address) as link:
        welcome(bare, link)
        bare.say(link.incarnation, request("one"))
        bare.say(link.incarnation, Goodbye())
        received(link)
        assert frontend_lost(link) == "frontend-a"
        bare.expect(Hello)


def test_last_messages_count_before_the_end_of_a_connection() -> None:
    bare = BareFrontend(linger=10_000)
    with engine(bare.address) as link:
        welcome(bare, link)
        (connection,) = link._frontends._connections.values()
        assert connection.peer._socket is not None
        monitor = connection.peer._socket._monitor
        assert monitor is not None
        link._reactor.post(partial(_wait, monitor))  # the link's thread reads nothing until then
        bare.say(link.incarnation, Abort(["r"]))
        bare.say(link.incarnation, Goodbye())
        bare.close()
        assert received(link).message == Abort(["r"])
        assert frontend_lost(link) == "frontend-a"


def test_silent_frontend_is_lost_and_greeted_again(bare: BareFrontend) -> None:
    with engine(bare.address, silence=0.4) as link:
        welcome(bare, link)
        assert frontend_lost(link) == "frontend-a"
        welcome(bare, link)


def test_frontend_that_stops_reading_is_lost() -> None:
    deaf, healthy = BareFrontend(rcvhwm=1), BareFrontend()
    with engine(deaf.address, healthy.address) as link:
        welcome(deaf, link, "deaf")
        welcome(healthy, link, "healthy")
        large = outputs("x" * 10_000)
        for sent in range(4 * QUEUE_MESSAGES):
            link.send("deaf", large)
            if sent % 100 == 0:
                link.send("healthy", outputs("mark"))
                healthy.expect(Outputs)  # the others go on, and the link's thread has done all before
            if not link.inbox.empty():
                break
        assert frontend_lost(link) == "deaf"
        assert sent < 2 * QUEUE_MESSAGES
        link.send("deaf", large)  # ignored
        link.send("healthy", outputs("after"))
        assert healthy.expect(Outputs) == outputs("after")
    deaf.close()
    healthy.close()


def test_welcome_by_another_frontend_drops_earlier_requests(
    bare: BareFrontend,
) -> None:
    with engine(bare.address) as link:
        welcome(bare, link)
        bare.say(link.incarnation, Welcome(PROTOCOL_VERSION, "frontend-b"))
        bare.expect(Ready)
        assert frontend_lost(link) == "frontend-a"
        bare.say(link.incarnation, request())
        assert received(link).frontend == "frontend-b"


def test_an_engine_whose_step_does_not_end_says_hello_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be taken back, given requests and lost again, for ever."""
    clock = [100.0]
    monkeypatch.setattr("kvasir.link.engine_end.announced_engine.time.monotonic", lambda: clock[0])
    engine = AnnouncedEngine(identity(), PROTOCOL_VERSION, 10.0)
    engine.set_load(STATS, busy=True)
    clock[0] += step_age_limit(10.0) - 1
    engine.set_load(STATS, busy=True)  # no step between the two
    assert engine.heartbeat().step_age == pytest.approx(step_age_limit(10.0) - 1)
    assert engine.greeting() is not None
    clock[0] += 2
    assert engine.greeting() is None
    engine.set_load(STATS, busy=False)
    assert engine.greeting() is not None
    assert engine.heartbeat() == Heartbeat(STATS, 0.0, step_limit=step_age_limit(10.0))


def test_an_engine_announces_the_limit_of_its_own_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, limit = [100.0], [50.0]
    monkeypatch.setattr("kvasir.link.engine_end.announced_engine.time.monotonic", lambda: clock[0])
    engine = AnnouncedEngine(identity(), PROTOCOL_VERSION, 10.0, lambda: limit[0])
    engine.set_load(STATS, busy=True)
    clock[0] += 40
    assert engine.heartbeat() == Heartbeat(STATS, 40.0, step_limit=50.0)
    assert engine.greeting() is not None
    limit[0] = 30.0
    assert engine.heartbeat() == Heartbeat(STATS, 40.0, step_limit=30.0)
    assert engine.greeting() is None


def test_closing_ends_even_if_a_frontend_is_deaf() -> None:
    deaf = BareFrontend(rcvhwm=1)
    with engine(deaf.address) as link:
        welcome(deaf, link)
        for _ in range(1000):
            link.send("frontend-a", outputs("x" * 10_000))
        began = time.monotonic()
        link.close(Dead("the end"))
        assert time.monotonic() - began < PATIENCE / 5  # by itself: within two seconds
        link.close(Goodbye())
    deaf.close()


def test_a_link_that_was_never_started_can_be_closed(bare: BareFrontend) -> None:
    link = QueuedLink(LinkConfig(link=(bare.address,)), identity())
    link.set_phase(Phase.LOADING)
    link.close(Goodbye())


def test_incarnations_differ() -> None:
    names = {new_incarnation(3) for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("engine-3-") for name in names)
