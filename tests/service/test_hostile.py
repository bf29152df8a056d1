import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIMEOUT = 180
COMMAND = (sys.executable, "-m", "bench.hostile", "--quiet-seconds", "1", "--streams", "4", "--connections", "80")


def test_honest_streams_go_on_under_attack() -> None:
    """The wait allowed is that of a busy machine; ten minutes with one second are for bench.hostile itself."""
    done = subprocess.run(
        [*COMMAND, "--seconds", "10", "--patience", "30"], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_sigterm_ends_service_and_attack() -> None:
    process = subprocess.Popen(
        [*COMMAND, "--seconds", "600"], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("before:")
        started = descendants(process.pid)
        assert len(started) >= 3  # the service's supervisor, frontend and engine
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 128 + signal.SIGTERM
        deadline = time.monotonic() + TIMEOUT
        while left := [pid for pid in started if is_running(pid)]:  # there is no event for it
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Whether the process is there and works for this program."""
    try:
        return b"kvasir" in (command := Path(f"/proc/{pid}/cmdline").read_bytes()) or b"bench.attacks" in command
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [each for child in children for each in descendants(child)]
