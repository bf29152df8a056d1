import os
import random
import select
import signal
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path

import pytest

from kvasir.executor.shared_memory.channel import MAX_UNANSWERED_FRAMES, REQUEST_BUFFERS, NoReplyError
from kvasir.executor.shared_memory.ring import PeerLostError, SlowReaderError
from runtime.executor.shared_memory.scripted_worker import WAITING
from runtime.executor.shared_memory.workers import TIMEOUT_SECONDS, Workers, cpu_ticks, running, wait_for

ENGINE = Path(__file__).with_name("scripted_engine_process.py")
MAX_NOTICE_SECONDS = 10.0
"""From SIGKILL to the error: some milliseconds, and far less than the timeout however busy the machine is."""


def killed(workers: Workers, rank: int) -> float:
    """Kill a worker; return the time."""
    workers.kill(rank)
    return time.monotonic()


def step_until_an_error(workers: Workers, frames: list[bytes]) -> None:
    for frame in cycle(frames):
        assert workers.step(frame) == [frame] * len(workers.processes)


def write_until_an_error(workers: Workers, timeout_seconds: float) -> None:
    while True:
        workers.channel.requests.write(b"more", timeout_seconds)


def kill_later(workers: Workers, rank: int, seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sh", "-c", f"sleep {seconds:.4f}; kill -9 {workers.processes[rank].pid}"])


def test_worker_killed_while_it_waits_for_a_frame() -> None:
    with running("echo", "echo", "echo") as workers:
        workers.step(b"")
        time_of_death = killed(workers, 1)
        with pytest.raises(PeerLostError, match=r"^worker 1 has ended$"):
            workers.read()
        assert time.monotonic() - time_of_death < MAX_NOTICE_SECONDS
        workers.processes[1].wait()
        with pytest.raises(PeerLostError, match=r"^worker 1 has ended$"):
            workers.write(b"")


def test_worker_killed_with_unread_frames() -> None:
    with running("echo", "deaf") as workers:
        for _ in range(MAX_UNANSWERED_FRAMES):
            workers.write(b"x" * 10_000)
        killed(workers, 1)
        with pytest.raises(PeerLostError, match=r"^worker 1 has ended$"):
            write_until_an_error(workers, TIMEOUT_SECONDS)
        with pytest.raises(PeerLostError, match=r"^worker 1 has ended$"):
            workers.read()


@pytest.mark.parametrize("seed", range(12))
def test_worker_killed_at_a_random_moment(seed: int) -> None:
    """While it waits, reads a frame or a large one, or replies."""
    rng = random.Random(seed)
    victim = rng.randrange(3)
    with running("echo", "slow", "echo") as workers:
        frames = [rng.randbytes(rng.choice([10, 3000, 4096, 4097, 200_000])) for _ in range(20)]
        workers.step(frames[0])
        killer = kill_later(workers, victim, rng.random() * 0.05)
        with pytest.raises(PeerLostError, match=rf"^worker {victim} has ended$") as error:
            step_until_an_error(workers, frames)
        killer.wait()
        assert error.value.rank == victim


@pytest.mark.parametrize("other", ["echo", "deaf"])
def test_worker_that_exits_within_a_step_is_named(other: str) -> None:
    """Even if another worker hangs in an earlier step."""
    with running("echo", "exit-at 2", other) as workers:
        workers.write(b"")
        if other == "echo":
            workers.read()
        workers.write(b"")
        with pytest.raises(PeerLostError, match=r"^worker 1 has ended$") as error:
            workers.read()
        assert error.value.rank == 1
        assert workers.processes[1].wait() == 3
        assert workers.processes[2].poll() is None


def test_frozen_worker_is_named_and_continues() -> None:
    with running("echo", "echo") as workers:
        workers.step(b"0")
        workers.await_phase(1, WAITING, step=1)
        workers.processes[1].send_signal(signal.SIGSTOP)
        for number in range(MAX_UNANSWERED_FRAMES):
            workers.write(b"%d" % number)
        with pytest.raises(NoReplyError, match=r"^no reply within 0.2 s from worker 1$"):
            workers.channel.replies.read(0.2)
        with pytest.raises(SlowReaderError, match=r"^worker 1 has not acknowledged frame 0 within 0.2 s"):
            write_until_an_error(workers, 0.2)
        progress = workers.channel.progress[1].read()
        assert progress is not None
        assert progress.phase == WAITING
        assert time.monotonic() - progress.since > 0.4
        workers.processes[1].send_signal(signal.SIGCONT)
        for number in range(MAX_UNANSWERED_FRAMES):
            assert workers.read() == [b"%d" % number] * 2


def test_frozen_worker_that_is_killed_ends_the_wait() -> None:
    with running("echo", "echo") as workers:
        workers.step(b"")
        workers.processes[0].send_signal(signal.SIGSTOP)
        killer = kill_later(workers, 0, 0.1)
        with pytest.raises(PeerLostError, match=r"^worker 0 has ended$"):
            write_until_an_error(workers, TIMEOUT_SECONDS)
        killer.wait()


@pytest.mark.parametrize(
    ("behaviour", "activity"),
    [("echo", "step"), ("echo", "idle"), ("large", "flood"), ("echo", "large"), ("deaf", "large")],
)
def test_engine_killed_ends_its_workers_and_frees_the_memory(behaviour: str, activity: str) -> None:
    """Workers wait for a frame, read a large one, or wait for room for their replies; descriptors are in flight."""
    before = shared_memory_of_all()
    engine = subprocess.Popen([sys.executable, str(ENGINE), behaviour, activity], stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    pids = [int(pid) for pid in engine.stdout.readline().split()]
    workers = [os.pidfd_open(pid) for pid in pids]
    try:
        time.sleep(0.2)  # in the middle of its activity
        engine.kill()
        engine.wait()
        if behaviour == "deaf":  # such a worker does not look at its ring
            for worker in workers:
                signal.pidfd_send_signal(worker, signal.SIGKILL)
        for worker in workers:
            assert select.select([worker], [], [], TIMEOUT_SECONDS)[0], "a worker has outlived its engine"
        wait_for(lambda: True if shared_memory_of_all() < before + 32 * 2**20 else None)
    finally:
        for worker in workers:
            os.close(worker)
        engine.stdout.close()


def shared_memory_of_all() -> int:
    """Return the bytes of shared memory that exist on this machine."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Shmem:"))


def test_idle_channel_uses_no_cpu() -> None:
    """Neither time nor wake-ups, in the workers and in a thread of the engine that waits for replies."""
    with running("echo", "echo", "echo", "echo") as workers:
        for _ in range(100):
            workers.step(b"frame")
        for rank in range(4):
            workers.await_phase(rank, WAITING, step=100)
        before = [idle_cost(process.pid) for process in workers.processes]
        used = time.thread_time()
        with pytest.raises(NoReplyError):
            workers.channel.replies.read(1.5)
        assert time.thread_time() - used < 0.005
        assert [idle_cost(process.pid) for process in workers.processes] == before


def test_writer_that_waits_for_room_uses_no_cpu() -> None:
    with running("echo", "deaf") as workers:
        workers.await_phase(1, WAITING)
        for _ in range(REQUEST_BUFFERS):
            workers.write(b"")
        used = time.thread_time()
        with pytest.raises(SlowReaderError):
            workers.channel.requests.write(b"", 1.0)
        assert time.thread_time() - used < 0.005


def idle_cost(pid: int) -> tuple[int, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    wake_ups = next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return cpu_ticks(pid), wake_ups
