import pytest

from kvasir.config.hardware.machine import CpuUse
from kvasir.executor.thread_count import INTERVAL_SECONDS, ThreadCount, fewer_threads, more_threads


class Machine:
    """A clock and counters; `step` computes for some seconds while threads wait and other processes run."""

    def __init__(self, cores: int = 2, *, readable: bool = True) -> None:
        self.now = self.others = 0.0
        self.waited = {1: 0.0, 2: 0.0}
        self.readings = 0
        self.readable = readable
        self.count = ThreadCount(cores, cores, self.read, lambda: self.now)

    def read(self) -> CpuUse | None:
        self.readings += 1
        return CpuUse(dict(self.waited), self.others) if self.readable else None

    def idle(self, seconds: float, others: float = 0.0) -> None:
        self.now += seconds
        self.others += seconds * others

    def step(self, seconds: float = 0.02, waiting: float = 0.0, others: float = 0.0) -> int:
        self.count.begin_step()
        threads = self.count.threads
        self.idle(seconds, others)
        self.waited[1] += seconds * waiting
        self.count.end_step()
        return threads

    def burst(self, waiting: float = 0.0, others: float = 0.0) -> None:
        """0.1 s of steps after a pause of 0.2 s."""
        self.idle(0.2, others)
        for _ in range(5):
            self.step(waiting=waiting, others=others)

    def steps(self, seconds: float, waiting: float = 0.0, others: float = 0.0) -> None:
        end = self.now + seconds
        while self.now < end:
            self.step(waiting=waiting, others=others)


@pytest.mark.parametrize(
    ("threads", "waiting", "fewer"),
    [(2, 0.0, 2), (2, 0.2, 2), (2, 0.5, 1), (2, 3.0, 1), (8, 0.5, 7), (8, 1.5, 5), (8, 8.0, 1), (1, 0.9, 1)],
)
def test_fewer_threads_gives_up_what_waits(threads: int, waiting: float, fewer: int) -> None:
    assert fewer_threads(threads, waiting) == fewer


@pytest.mark.parametrize(
    ("threads", "most", "cores", "others", "more"),
    [(1, 2, 2, 0.2, 2), (1, 2, 2, 0.3, 1), (1, 2, 2, 5.0, 1), (3, 8, 8, 2.0, 6), (1, 2, 64, 40.0, 2)],
)
def test_more_threads_fills_free_cores(threads: int, most: int, cores: int, others: float, more: int) -> None:
    assert more_threads(threads, most, cores, others) == more


def test_a_quiet_machine_keeps_all_threads() -> None:
    machine = Machine()
    machine.steps(60, waiting=0.05, others=0.15)
    assert machine.count.threads == 2


def test_one_slow_step_is_enough_to_fall() -> None:
    machine = Machine()
    machine.step(seconds=0.4, waiting=0.5, others=0.5)
    assert machine.count.threads == 1


def test_a_thread_that_ends_does_not_delay_the_fall() -> None:
    machine = Machine()
    machine.waited[2] = 10.0
    machine.steps(1)
    del machine.waited[2]
    machine.step(seconds=0.4, waiting=0.5, others=0.5)
    assert machine.count.threads == 1


def test_waiting_for_threads_of_this_process_does_not_count() -> None:
    machine = Machine()
    machine.steps(10, waiting=0.5, others=0.1)
    assert machine.count.threads == 2


def test_the_count_stays_while_the_neighbour_runs() -> None:
    machine = Machine()
    machine.steps(0.5, waiting=0.5, others=0.5)
    assert {machine.step(others=1.0) for _ in range(3000)} == {1}


def test_the_count_rises_when_the_neighbour_ends() -> None:
    machine = Machine()
    machine.steps(5, waiting=0.5, others=0.5)
    machine.steps(2)
    assert machine.count.threads == 2


def test_the_count_rises_during_a_pause() -> None:
    machine = Machine()
    machine.steps(1, waiting=0.5, others=0.5)
    machine.idle(10)
    assert machine.step() == 2


def test_waiting_during_a_pause_does_not_count() -> None:
    machine = Machine()
    machine.steps(1)
    machine.idle(0.2)
    machine.waited[1] += 5
    machine.idle(INTERVAL_SECONDS)
    assert machine.step() == 2
    assert machine.count.threads == 2


def test_short_bursts_add_up_to_a_fall() -> None:
    machine = Machine()
    for _ in range(4):
        machine.burst(waiting=0.5, others=0.5)
    assert machine.count.threads == 1


def test_single_short_steps_add_up_to_a_fall() -> None:
    machine = Machine()
    for _ in range(20):
        machine.idle(0.1, others=0.5)
        machine.step(waiting=0.5, others=0.5)
    assert machine.count.threads == 1


def test_waiting_in_pauses_between_short_bursts_does_not_count() -> None:
    machine = Machine()
    for _ in range(100):
        machine.waited[1] += 0.2
        machine.burst(others=1.0)
        assert machine.count.threads == 2


def test_a_long_burst_is_read_once_in_an_interval() -> None:
    machine = Machine()
    machine.steps(1)
    before = machine.readings
    machine.steps(10)
    assert machine.readings - before <= 10 / INTERVAL_SECONDS


def test_a_neighbour_that_comes_and_goes_costs_ever_fewer_rises() -> None:
    machine = Machine()
    rises = []
    for second in range(120):
        for half in (0.0, 1.0):
            before = machine.count.threads
            for _ in range(25):
                waiting = half / 2 if machine.count.threads == 2 else 0.0
                machine.step(waiting=waiting, others=half)
                if machine.count.threads > before:
                    rises.append(second)
                before = machine.count.threads
    assert 3 <= len(rises) <= 10
    assert sum(second >= 60 for second in rises) <= 2


def test_the_hold_doubles_once_for_each_rise() -> None:
    machine = Machine(cores=4)
    machine.steps(0.3, waiting=0.5, others=0.5)
    machine.steps(1.5)
    assert machine.count.threads == 4
    machine.steps(0.6, waiting=0.5, others=0.5)
    assert machine.count.threads == 2
    machine.steps(2.5)
    assert machine.count.threads == 4


def test_counters_that_cannot_be_read_change_nothing() -> None:
    machine = Machine(readable=False)
    machine.steps(5, waiting=1.0, others=1.0)
    assert machine.count.threads == 2
