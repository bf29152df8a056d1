import queue
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import zmq

from kvasir.config.nodes import NodesConfig
from kvasir.config.options import ConfigError
from kvasir.config.process_settings import LinkConfig
from kvasir.executor.nodes.addresses import interface_of
from kvasir.executor.nodes.leader import Leader
from kvasir.executor.nodes.leader_connection import Begin, LeaderConnection, LeaderEvent, LeaderLost, Rejected
from kvasir.executor.nodes.node_messages import (
    Describe,
    Described,
    Failed,
    Joined,
    Leaving,
    NodeHeartbeat,
    NodeHello,
    NodeRefused,
    Replies,
    Setup,
    WorkerNews,
    decode_from_member,
)
from kvasir.executor.processes.worker_messages import Loaded
from kvasir.executor.remote_workers import RemoteInterruptedError, RemoteSilentError
from kvasir.process.failures import FailureError
from kvasir.wire.keys import load_frontend_keys, load_shared_keys
from kvasir_contract.reasons import Reason
from runtime.executor.nodes.node_pair import (
    FAST,
    TERMS,
    WAIT,
    Events,
    RawMember,
    address_for_others,
    begin,
    free_port,
    keyed,
    leading,
    member,
    node,
)
from runtime.link.written_keys import write_link_keys
from runtime.worker.driver import engine_settings


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def wait_for(text: str, leader: Leader) -> None:
    """Wait until the leader waits for this."""
    deadline = time.monotonic() + WAIT
    while leader.waits_for != text:
        assert time.monotonic() < deadline, leader.waits_for
        time.sleep(0.005)


def test_leader_waits_for_all_members_that_are_prepared() -> None:
    port = free_port()
    terms = msgspec.structs.replace(TERMS, nnodes=4)
    with (
        member(port, 2, 4, terms=terms) as second,  # members may start before the leader
        leading(port, nnodes=4, terms=terms) as leader,
        member(port, 1, 4, terms=terms, prepared=False) as first,
    ):
        wait_for("waits for nodes 1, 3 of 4", leader)
        first.connection.prepared()
        wait_for("waits for node 3 of 4", leader)
        with member(port, 3, 4, terms=terms) as third:
            begin(leader, Events())
            assert leader.waits_for == ""
            for rank, each in ((1, first), (2, second), (3, third)):
                event = each.event()
                assert isinstance(event, Begin)
                assert (event.setup.first_rank, event.setup.num_ranks) == (rank, 1)
                assert (event.leader_ip, event.incarnation) == ("127.0.0.1", leader.incarnation)
                assert each.connection.problem == ""


def test_frames_reach_members_and_replies_come_back_by_rank() -> None:
    port = free_port()
    terms = msgspec.structs.replace(TERMS, nnodes=3)
    with (
        leading(port, nnodes=3, terms=terms) as leader,
        member(port, 1, 3, terms=terms) as first,
        member(port, 2, 3, terms=terms) as second,
    ):
        begin(leader, Events())
        for frame in (b"one", b"two", bytes(2**20)):
            leader.write(frame)
        for each in (first, second):
            assert [each.frames.get(timeout=WAIT) for _ in range(3)] == [b"one", b"two", bytes(2**20)]
        second.connection.send(Replies([b"2a"]))
        second.connection.send(Replies([b"2b"]))
        with pytest.raises(RemoteSilentError) as silent:
            leader.read(0.2)
        assert silent.value.ranks == [1]
        first.connection.send(Replies([b"1a"]))
        assert leader.read(WAIT) == [b"1a", b"2a"]
        first.connection.send(Replies([b"1b"]))
        assert leader.read(WAIT) == [b"1b", b"2b"]


def test_members_report_how_their_workers_start_and_what_they_do() -> None:
    port = free_port()
    events = Events()
    with leading(port) as leader, member(port) as first:
        begin(leader, events)
        assert isinstance(first.event(), Begin)
        first.connection.send(WorkerNews(1, Loaded("w")))
        assert events.news.get(timeout=WAIT) == (1, Loaded("w"))
        described: list[str] = []
        asks = threading.Thread(target=lambda: described.append(leader.describe([1])))
        asks.start()
        question = first.event()
        assert isinstance(question, Describe)
        assert question.ranks == [1]
        first.connection.send(Described(question.question - 1, "worker 1 was in phase load"))  # a late answer
        first.connection.send(Described(question.question, "worker 1 is in phase idle"))
        asks.join(WAIT)
        assert described == ["node 1 (127.0.0.1): worker 1 is in phase idle"]
        assert leader.describe([1]) == "node 1 with the workers 1 does not answer"


def test_member_that_is_asked_to_end_has_the_engine_drain() -> None:
    port = free_port()
    drains = threading.Event()
    with leading(port) as leader, member(port) as first:
        leader.drain = drains.set
        begin(leader, Events())
        assert isinstance(first.event(), Begin)
        first.connection.send(Leaving())
        assert drains.wait(WAIT)


def test_failure_of_a_members_worker_names_the_node() -> None:
    port = free_port()
    events = Events()
    with leading(port) as leader:
        with member(port) as first:
            begin(leader, events)
            assert isinstance(first.event(), Begin)
            first.connection.send(Failed(Reason.OUT_OF_MEMORY, "worker 1 was killed", raised=False))
            failure, raised = events.failures.get(timeout=WAIT)
        assert failure.reason is Reason.OUT_OF_MEMORY
        assert failure.message == "node 1 (127.0.0.1): worker 1 was killed"
        assert not raised
        leader.dismiss("it ended")
        with pytest.raises(RemoteInterruptedError):
            leader.read(WAIT)
        assert events.failures.empty()  # not another one for the end of this member


def test_failure_of_a_member_precedes_its_broken_connection() -> None:
    port = free_port()
    events = Events()
    held, ended = threading.Event(), threading.Event()
    with leading(port) as leader:

        def hold() -> None:
            held.set()
            ended.wait(WAIT)
            (identity,) = leader._by_identity
            wait_until(lambda: leader._socket.send(identity, NodeHeartbeat()) is not None)

        with member(port) as first:
            begin(leader, events)
            assert isinstance(first.event(), Begin)
            leader._socket.post(hold)
            assert held.wait(WAIT)
            first.connection.send(Failed(Reason.OUT_OF_MEMORY, "worker 1 was killed", raised=False))
        leader.write(b"a frame")  # to a member that has ended
        ended.set()
        failure, _ = events.failures.get(timeout=WAIT)
        assert failure.message == "node 1 (127.0.0.1): worker 1 was killed"


def test_failure_before_the_setup_is_logged_and_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    with leading(port) as leader:
        with member(port, prepared=False) as first:
            wait_until(lambda: first.connection.problem == "")
            first.connection.send(Failed(Reason.MODEL_NOT_FOUND, "there is no model", raised=False))
            wait_until(lambda: "node 1 (127.0.0.1): there is no model" in caplog.text)
        assert leader.waits_for == "waits for node 1 of 2"


def test_member_that_has_not_joined_sends_only_its_hello() -> None:
    port = free_port()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    silent = context.socket(zmq.ROUTER)  # a leader that never lets the member join
    silent.rcvtimeo = int(WAIT * 1000)
    silent.bind(f"tcp://127.0.0.1:{port}")
    with member(port, prepared=False) as first:
        received = [decode_from_member(silent.recv_multipart()[1:])[1]]
        first.connection.send(Failed(Reason.MODEL_NOT_FOUND, "there is no model", raised=False))
        first.connection.prepared()
        while received[-1] != NodeHello(1, TERMS, prepared=True, leader_address="127.0.0.1"):
            received.append(decode_from_member(silent.recv_multipart()[1:])[1])
    context.destroy(linger=0)
    assert {type(message) for message in received} == {NodeHello}


def test_lost_member_is_noticed_at_once_while_idle() -> None:
    port = free_port()
    events = Events()
    with leading(port) as leader:
        with member(port):
            begin(leader, events)
            leader._tick = lambda now, late: None  # type: ignore[method-assign]  # no heartbeat notices it
        assert events.failure() == "node 1 (127.0.0.1) is lost: its connection broke"


def test_frozen_member_is_lost_after_the_timeout() -> None:
    port = free_port()
    events = Events()
    with leading(port, FAST) as leader:
        frozen = RawMember(port)
        frozen.send("", NodeHello(1, TERMS, prepared=True, leader_address="127.0.0.1"))
        begin(leader, events)
        assert events.failure().startswith("node 1 (127.0.0.1) is lost: it has been silent for 1.")
        frozen.close()


def test_ranks_meet_where_the_member_reached_the_leader() -> None:
    """The proxy of a service mesh connects to the leader from a loopback address."""
    port = free_port()
    with leading(port) as leader:
        proxied = RawMember(port)  # the leader sees it at 127.0.0.1
        proxied.send("", NodeHello(1, TERMS, prepared=True, leader_address="127.0.0.9"))
        proxied.receive(Joined)
        with leader.begin(engine_settings(), 1, Events()) as rendezvous:
            assert rendezvous.host == "127.0.0.9"
        proxied.close()


def test_frozen_leader_is_lost_after_the_timeout() -> None:
    port = free_port()
    with leading(port) as leader, member(port, link=FAST) as first:  # the leader's heartbeats are seconds apart
        leader._tick = lambda now, late: None  # type: ignore[method-assign]
        begin(leader, Events())
        assert isinstance(first.event(), Begin)
        lost = first.event()
        assert isinstance(lost, LeaderLost)
        assert "is lost: it has been silent for 1." in lost.reason


def fail(now: float, late: float) -> None:
    raise OSError("no descriptors are left")


def test_engine_ends_if_the_leaders_thread_fails() -> None:
    port = free_port()
    events = Events()
    with leading(port, FAST) as leader, member(port) as first:
        begin(leader, events)
        assert isinstance(first.event(), Begin)
        leader._tick = fail  # type: ignore[method-assign]
        assert "have failed: OSError('no descriptors are left')" in events.failure()
        with pytest.raises(RemoteInterruptedError):
            leader.read(WAIT)
        assert isinstance(first.event(), LeaderLost)  # at once: its timeout is longer than the test waits


def test_start_ends_if_the_leaders_thread_fails() -> None:
    with leading(free_port(), FAST) as leader:
        leader._tick = fail  # type: ignore[method-assign]
        with pytest.raises(FailureError, match="no descriptors are left"):
            begin(leader, Events())


def test_member_ends_if_the_thread_of_its_connection_fails() -> None:
    port = free_port()
    with leading(port) as leader, member(port, link=FAST) as first:
        begin(leader, Events())
        assert isinstance(first.event(), Begin)
        first.connection._peer.tick = fail  # type: ignore[method-assign]
        lost = first.event()
        assert isinstance(lost, LeaderLost)
        assert "no descriptors are left" in lost.reason


def test_member_that_leaves_before_the_setup_is_waited_for_again() -> None:
    port = free_port()
    terms = msgspec.structs.replace(TERMS, nnodes=3)
    with leading(port, nnodes=3, terms=terms) as leader:
        with member(port, 1, 3, terms=terms):
            wait_for("waits for node 2 of 3", leader)
        wait_for("waits for nodes 1, 2 of 3", leader)


def test_member_joins_the_next_incarnation_if_it_had_no_setup() -> None:
    port = free_port()
    terms = msgspec.structs.replace(TERMS, nnodes=3)
    with member(port, 1, 3, terms=terms) as first:
        for _ in range(2):
            with leading(port, nnodes=3, terms=terms) as leader:
                wait_for("waits for node 2 of 3", leader)
        assert first.events.empty()


def test_end_of_the_leader_reaches_a_member_with_its_reason() -> None:
    port = free_port()
    with member(port) as first:
        with leading(port) as leader:
            begin(leader, Events())
            assert isinstance(first.event(), Begin)
            leader.close("worker 0 was killed by SIGKILL")
        assert first.event() == LeaderLost(
            f"node 0 at 127.0.0.1, port {port} is lost: it has ended: worker 0 was killed by SIGKILL"
        )


def test_member_that_was_started_again_ends_the_engine() -> None:
    port = free_port()
    events = Events()
    with leading(port) as leader, member(port):
        begin(leader, events)
        with member(port):
            assert "is lost: another process has joined in its place" in events.failure()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"tensor_parallel_size": 4}, "tensor-parallel-size is 2 on node 0 and 4 there"),
        ({"enable_expert_parallel": True}, "enable-expert-parallel is False on node 0 and True there"),
        ({"model": "other"}, "model is 'model' on node 0 and 'other' there"),
        ({"version": "0.2", "protocol": 2}, "protocol is 1 on node 0 and 2 there; version is '0.1'"),
        ({"service_uid": "b"}, "service-uid is 'uid' on node 0 and 'b' there"),
    ],
)
def test_different_terms_are_refused_by_name_at_both_ends(
    change: dict[str, object], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    with leading(port) as leader, member(port, terms=msgspec.structs.replace(TERMS, **change)) as other:
        rejected = other.event()
        assert isinstance(rejected, Rejected)
        assert text in rejected.reason
        assert text in caplog.text
        assert leader.waits_for == "waits for node 1 of 2"


def test_rejected_member_that_still_reads_its_model_shows_why(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    with leading(port), member(port, terms=msgspec.structs.replace(TERMS, model="b"), prepared=False) as other:
        wait_until(lambda: other.connection.is_refused)
        assert "model is 'model' on node 0 and 'b' there" in other.connection.problem
        wait_until(lambda: "this node ends when it has read its model" in caplog.text)


def test_unknown_node_rank_is_refused() -> None:
    port = free_port()
    with leading(port), member(port, 2) as other:
        assert "--node-rank 2 is not a member of 2 nodes" in other.event().reason


def test_second_process_of_a_node_wins_before_the_setup() -> None:
    port = free_port()
    terms = msgspec.structs.replace(TERMS, nnodes=3)
    with leading(port, nnodes=3, terms=terms) as leader, member(port, 1, 3, terms=terms) as first:
        wait_for("waits for node 2 of 3", leader)
        with member(port, 1, 3, terms=terms):
            assert "another process has joined as this node" in first.event().reason


def test_messages_for_another_incarnation_are_refused() -> None:
    port = free_port()
    events = Events()
    with leading(port) as leader:
        stale = RawMember(port)
        stale.send("0123", Replies([b"old"]))
        assert "not a member of this incarnation" in stale.receive(NodeRefused)[1].reason
        stale.send("", NodeHello(1, TERMS, prepared=True, leader_address="127.0.0.1"))
        incarnation, _ = stale.receive(Joined)
        assert incarnation == leader.incarnation
        begin(leader, events)
        stale.receive(Setup)
        stale.send("0123", Replies([b"old"]))
        assert "not a member of this incarnation" in stale.receive(NodeRefused)[1].reason
        stale.send(incarnation, Replies([b"new"]))
        assert leader.read(WAIT) == [b"new"]
        stale.close()


@pytest.mark.parametrize("frames", [[b""], [b"", b"\xc1"], [b"\xff", b"\x90"], [b"", b"", b""]])
def test_malformed_message_is_refused_and_harms_nothing(frames: list[bytes]) -> None:
    port = free_port()
    with leading(port) as leader, member(port) as first:
        wrong = RawMember(port)
        wrong.send_frames(frames)
        assert "not a message of this version" in wrong.receive(NodeRefused)[1].reason
        wrong.close()
        begin(leader, Events())
        assert isinstance(first.event(), Begin)


def test_nodes_with_the_same_keys_join(tmp_path: Path) -> None:
    write_link_keys(tmp_path / "frontend", tmp_path / "engine")
    port = free_port()
    link = keyed(tmp_path / "engine")
    with leading(port, link) as leader, member(port, link=link) as first:
        begin(leader, Events())
        assert isinstance(first.event(), Begin)


@pytest.mark.parametrize("of_member", ["other", None])
def test_member_with_other_keys_or_none_never_joins(tmp_path: Path, of_member: str | None) -> None:
    for name in ("own", "other"):
        write_link_keys(tmp_path / f"{name}-frontend", tmp_path / name)
    port = free_port()
    wrong = keyed(tmp_path / of_member) if of_member else LinkConfig(heartbeat_timeout=WAIT)
    with leading(port, keyed(tmp_path / "own")) as leader, member(port, link=wrong) as first:
        deadline = time.monotonic() + WAIT
        while not first.connection.is_refused:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        # ZMQ reports either the mechanism or the end of the handshake
        assert re.search("one side has --link-keys|check that the keys belong together", first.connection.problem)
        assert leader.waits_for == "waits for node 1 of 2"


def test_rejected_key_is_no_longer_reported_if_nothing_answers(tmp_path: Path) -> None:
    write_link_keys(tmp_path / "frontend", tmp_path / "engine")
    port = free_port()
    with member(port) as first:
        with leading(port, keyed(tmp_path / "engine")):
            wait_until(lambda: first.connection.is_refused)
        wait_until(lambda: not first.connection.is_refused)
        assert "nothing answers there yet" in first.connection.problem


def test_key_of_the_frontends_is_not_admitted(tmp_path: Path) -> None:
    """A frontend holds the public key of the engines, so it could reach the leader: its own key is not admitted."""
    write_link_keys(tmp_path / "frontend", tmp_path / "engine")
    port = free_port()
    engine, frontend = load_shared_keys(str(tmp_path / "engine")), load_frontend_keys(str(tmp_path / "frontend"))
    with leading(port, keyed(tmp_path / "engine")) as leader, zmq.Context() as context:
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.curve_secretkey, socket.curve_publickey = frontend.secret, frontend.public
        socket.curve_serverkey = engine.public
        monitor = socket.get_monitor_socket(zmq.Event.HANDSHAKE_FAILED_AUTH)
        socket.connect(f"tcp://127.0.0.1:{port}")
        assert monitor.poll(int(WAIT * 1000))
        socket.disable_monitor()
        socket.close()
        assert leader.waits_for == "waits for node 1 of 2"


def test_nodes_meet_at_the_address_of_the_leader(tmp_path: Path) -> None:
    host = address_for_others()
    if host is None:
        pytest.skip("this machine has no network")
    write_link_keys(tmp_path / "frontend", tmp_path / "engine")
    link = keyed(tmp_path / "engine")
    port = free_port()
    leader = Leader(node(port, host=host), link, TERMS)
    events: queue.SimpleQueue[LeaderEvent] = queue.SimpleQueue()
    names = {"engine-0.engine": frozenset({host})}
    config = node(port, 1, host="engine-0.engine")
    connection = LeaderConnection(config, link, TERMS, events.put, lambda frame: None, names.__getitem__)
    connection.start()
    connection.prepared()
    with leader.begin(engine_settings(), 1, Events()) as rendezvous:
        assert rendezvous.host == host
        assert rendezvous.interface == interface_of(host)
    event = events.get(timeout=WAIT)
    assert isinstance(event, Begin)
    assert event.leader_ip == host
    connection.close()
    leader.close("the test ends")


def test_nodes_in_several_pods_need_keys() -> None:
    config = NodesConfig(2, 0, "engine-0.engine", 1)
    with pytest.raises(ConfigError, match=r"--master-addr engine-0.engine leaves this machine .* give --link-keys"):
        Leader(config, LinkConfig(), TERMS)
    with pytest.raises(ConfigError, match="give --link-keys"):
        LeaderConnection(config, LinkConfig(), TERMS, lambda event: None, lambda frame: None)


def test_port_that_is_taken_is_named() -> None:
    port = free_port()
    with leading(port), pytest.raises(ConfigError, match=f"--master-port {port} cannot be bound: another process"):
        Leader(node(port), LinkConfig(), TERMS)
