import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import torch

from kvasir.config.options import ConfigError
from kvasir.parallel.engine_groups import connect
from kvasir.parallel.meeting_point import MeetingPoint
from runtime.parallel.processes import idle_wake_ups

T = TypeVar("T")
HOST = "127.0.0.1"
LIMIT = 30.0


@pytest.fixture
def port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def at_once(*work: Callable[[], T]) -> Iterator[list[Future[T]]]:
    with ThreadPoolExecutor(len(work)) as threads:
        yield [threads.submit(each) for each in work]


def meet(port: int, rank: int, size: int = 2, limit: float = LIMIT) -> MeetingPoint:
    return MeetingPoint(HOST, port, rank, size, limit)


def compare(port: int, rank: int, settings: dict[str, str]) -> MeetingPoint:
    meeting = meet(port, rank)
    meeting.compare(settings)
    return meeting


def test_engines_of_the_same_settings_meet_in_any_order(port: int) -> None:
    same = {"--dtype": "float32", "model": "abc"}
    with at_once(partial(compare, port, 1, same), partial(compare, port, 0, same)) as meetings:
        assert [meeting.result(LIMIT).host for meeting in meetings] == [HOST, HOST]


@pytest.mark.parametrize("other", [{"--dtype": "bfloat16"}, {"--dtype": "float32", "--new": "1"}])
def test_a_different_setting_is_refused_by_every_engine(port: int, other: dict[str, str]) -> None:
    name = "--new" if "--new" in other else "--dtype"
    work = partial(compare, port, 0, {"--dtype": "float32"}), partial(compare, port, 1, other)
    with at_once(*work) as meetings:
        for meeting in meetings:
            with pytest.raises(ConfigError, match=f"need the same {name}, and rank 0 has .* and rank 1 has"):
                meeting.result(LIMIT)


def test_every_engine_names_the_first_different_setting(port: int) -> None:
    first, second = ({f"--option-{number}": str(rank) for number in range(20)} for rank in range(2))
    with at_once(partial(compare, port, 0, first), partial(compare, port, 1, second)) as meetings:
        for meeting in meetings:
            with pytest.raises(ConfigError, match="need the same --option-0,"):
                meeting.result(LIMIT)


def test_an_engine_that_joins_twice_ends_the_meeting_for_all(port: int) -> None:
    first = meet(port, 0, size=3)
    meet(port, 1, size=3)
    with at_once(partial(first.compare, {}), partial(meet, port, 1, 3)) as waiting:
        for each in waiting:
            with pytest.raises(RuntimeError, match=r"rank 1 .* has joined twice"):
                each.result(LIMIT)


def test_an_engine_that_does_not_come_is_named(port: int) -> None:
    meeting = meet(port, 0, limit=0.1)
    with pytest.raises(RuntimeError, match=f"rank 1 .* did not come to {HOST}:{port} within"):
        meeting.wait_for_all("loaded")


def test_a_rank_0_that_does_not_listen_is_named(port: int) -> None:
    with pytest.raises(RuntimeError, match=f"rank 0 does not listen at {HOST}:{port}"):
        meet(port, 1, limit=0.1)


def test_a_rank_0_that_ends_during_the_meeting_is_named(port: int) -> None:
    first = meet(port, 0)
    second = meet(port, 1)
    del first  # its store ends
    with pytest.raises(RuntimeError, match=f"rank 0 .*, at {HOST}:{port}, has ended or does not answer"):
        second.wait_for_all("loaded")


def test_a_port_of_another_service_is_given_up(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvasir.parallel.meeting_point._ANSWER_SECONDS", 0.2)
    with socket.create_server((HOST, port)), pytest.raises(RuntimeError, match="does not answer as rank 0 does"):
        meet(port, 1)


@pytest.mark.parametrize("name", ["experts", "calls"])
def test_an_engine_that_is_lost_before_it_connects_is_noticed(
    port: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = meet(port, 0)
    real = meeting.group

    def group(each: str, timeout: float) -> Any:
        return real(each, timeout) if each == name else SimpleNamespace(rank=lambda: 0, size=lambda: 2)

    monkeypatch.setattr(meeting, "group", group)
    with (
        at_once(partial(connect, meeting, 0.2)) as (connected,),
        pytest.raises(RuntimeError, match="could not connect to each other"),
    ):
        connected.result(LIMIT)


def test_a_waiting_engine_reports_which_one_is_missing(port: int) -> None:
    texts: list[str] = []
    first = MeetingPoint(HOST, port, 0, 2, LIMIT, texts.append)
    with at_once(partial(first.wait_for_all, "loaded")) as (waiting,):
        while not texts:
            time.sleep(0.01)
        meet(port, 1).wait_for_all("loaded")
        waiting.result(LIMIT)
    assert set(texts) == {"waits for rank 1 of 2 engines that share experts", ""}
    assert texts[-1] == ""


def test_a_port_that_is_taken_is_refused(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvasir.parallel.meeting_point._PORT_SECONDS", 0.1)
    with socket.create_server((HOST, port)), pytest.raises(ConfigError, match="--data-parallel-rpc-port"):
        meet(port, 0)


def test_rank_0_waits_for_a_port_that_is_taken_for_a_moment(port: int) -> None:
    texts: list[str] = []
    taken = socket.create_server((HOST, port))
    with at_once(partial(MeetingPoint, HOST, port, 0, 1, LIMIT, texts.append)) as (waiting,):
        while not texts:
            time.sleep(0.01)
        taken.close()
        waiting.result(LIMIT)
    assert set(texts) == {f"waits until no other process listens at {HOST}:{port}", ""}
    assert texts[-1] == ""


def join(address: str, port: int, rank: int) -> list[float]:
    experts, _ = connect(MeetingPoint(address, port, rank, 2, LIMIT), LIMIT)
    return experts.all_reduce(torch.full((1,), rank + 1.0)).tolist()


def test_engines_meet_at_an_address_of_ipv6(port: int) -> None:
    with at_once(partial(join, "::1", port, 0), partial(join, "::1", port, 1)) as totals:
        assert [total.result(LIMIT) for total in totals] == [[3.0], [3.0]]


def test_rank_0_listens_on_its_address_only(port: int) -> None:
    meeting = meet(port, 0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5)
    assert meeting.host == HOST


def one_engine(port: int, rank: int) -> tuple[list[float], list[int], list[bool], list[int]]:
    """The environment of an engine in a process of its own."""
    torch.set_num_threads(1)
    experts, waves = connect(compare(port, rank, {}), timeout=LIMIT)
    total = experts.all_reduce(torch.full((2,), rank + 1.0)).tolist()
    gathered = experts.all_gather(torch.tensor([[rank]]), 0).flatten().tolist()
    flags = waves.any([False, rank == 1, True])
    calls = []
    for wave in range(3):
        waves.call_next(wave)
        calls.append(waves.wait_for_call())
    waves.any([True])  # no engine leaves before the last call has been received
    return total, gathered, flags, calls


def idle_engine(port: int, rank: int) -> list[int]:
    meeting = meet(port, rank)
    _, waves = connect(meeting, timeout=LIMIT)
    waves.any([True])
    wake_ups = idle_wake_ups()
    meeting.wait_for_all("done")
    waves.any([True])  # rank 0, which has the store, ends last
    return wake_ups


def test_an_idle_engine_has_one_thread_of_gloo_that_sleeps(port: int) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for engine in [pool.submit(idle_engine, port, rank) for rank in range(2)]:
            (wake_ups,) = engine.result(2 * LIMIT)
            assert wake_ups < 20


def test_engines_compute_together_and_call_each_other(port: int) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for engine in [pool.submit(one_engine, port, rank) for rank in range(2)]:
            assert engine.result(2 * LIMIT) == ([3.0, 3.0], [0, 1], [False, True, True], [0, 1, 2])
