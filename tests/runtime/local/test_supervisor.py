import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvasir.config.options import ConfigError
from kvasir.local.supervision.keeper import Timing, warnings_of
from kvasir.local.supervision.process_spec import Probe
from kvasir.local.supervision.supervisor import ProcessFailed, Supervisor
from runtime.local.supervised import FAKE, FAST, PATIENCE, Recording, free_port, running, spec


async def test_phases_pass_until_all_serve_and_the_end_leaves_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, spec("frontend-0", "serve"), spec("engine-0", "loading")) as run:
        await run.screen.until(lambda: run.screen.served == 1)
        engine = [line for line in run.screen.lines if line.startswith("engine-0")]
        assert engine == ["engine-0 Starting", "engine-0 Loading", "engine-0 Warming", "engine-0 Ready"]
        run.supervisor.end()
        await run.ended()
        assert await run.all_gone()
        assert run.screen.lines[-1].endswith("Stopped")
    assert (tmp_path / "engine-0.log").read_text() == "this is loading\nasked to end\n"


async def test_a_failed_process_does_not_end_the_others(tmp_path: Path) -> None:
    async with running(tmp_path, spec("engine-0", "failed"), spec("frontend-0", "serve")) as run:
        await run.screen.until(lambda: run.screen.served == 1)
        assert run.screen.count("Failed") == 0
        assert run.screen.count("Stopping") == 0


async def test_reason_of_a_process_that_does_no_work_is_shown(tmp_path: Path) -> None:
    async with running(tmp_path, spec("engine-0", "refused")) as run:
        await run.screen.until(lambda: run.screen.count("engine-0 Ready LinkRefused: another model") == 1)


async def test_a_killed_process_is_told_at_once_and_started_again(tmp_path: Path) -> None:
    async with running(tmp_path, spec("engine-0", "serve"), spec("engine-1", "serve")) as run:
        await run.screen.until(lambda: run.screen.served == 1)
        first, other = run.pid("engine-0"), run.pid("engine-1")
        os.kill(first, signal.SIGKILL)
        await run.screen.until(lambda: run.screen.count("engine-0 Ready") == 2)
        assert (
            run.screen.count("engine-0 Restarting ended by signal 9 (SIGKILL), restart 1; next try in 0.05 s") == 1
        )
        assert run.screen.states["engine-0"].restarts == 1
        assert run.pid("engine-0") != first
        assert run.pid("engine-1") == other
        assert run.screen.served == 1


async def test_pauses_between_restarts_double_up_to_the_longest(tmp_path: Path) -> None:
    async with running(tmp_path, spec("engine-0", "exit", "1")) as run:
        await run.screen.until(lambda: run.screen.count("Restarting") == 4)
        pauses = [line.rpartition(" in ")[2] for line in run.screen.lines if "Restarting" in line]
        assert pauses == ["0.05 s", "0.1 s", "0.15 s", "0.15 s"]
        assert run.screen.states["engine-0"].last_lines == ["this is exit", "the reason why"]


async def test_a_long_run_resets_the_pause(tmp_path: Path) -> None:
    async with running(tmp_path, spec("engine-0", "exit", "0"), timing=replace(FAST, healthy_after=0)) as run:
        await run.screen.until(lambda: run.screen.count("Restarting") == 3)
        assert run.screen.count("; next try in 0.05 s") == 3


@pytest.mark.parametrize("behaviour", ["fail", "exit"])
async def test_a_users_mistake_ends_everything_with_its_message(tmp_path: Path, behaviour: str) -> None:
    async with running(tmp_path, spec("engine-0", behaviour, "2"), spec("frontend-0", "serve")) as run:
        log = tmp_path / "engine-0.log"
        with pytest.raises(ProcessFailed, match=rf"^engine-0: the reason why \(its log: {log}\)$"):
            await run.ended()
        assert run.screen.count("engine-0 Failed the reason why") == 1
        assert run.screen.count("Restarting") == 0
        assert run.screen.lines[-1] == "frontend-0 Stopped"
        assert await run.all_gone()


async def test_failure_of_a_process_is_shown_with_its_restart(tmp_path: Path) -> None:
    async with running(tmp_path, spec("engine-0", "fail", "1")) as run:
        await run.screen.until(lambda: run.screen.count("Restarting") == 1)
        assert run.screen.count("engine-0 Restarting the reason why, restart 1; next try in 0.05 s") == 1
        assert run.screen.states["engine-0"].last_lines == ["this is fail"]


def test_warnings_are_found_in_either_form_of_the_log() -> None:
    lines = ["2026-11-22T06:27:34.9Z WARNING engine-0 careful", "2026-11-22T06:27:34.9Z INFO    engine-0 fine"]
    lines += ['{"level": "warning", "logger": "x", "message": "a \\"b\\""}', "WARNING of another library", lines[0]]
    assert warnings_of(lines) == ["careful", 'a "b"']


async def test_logs_deleted_meanwhile_do_not_end_the_services(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    async with running(logs, spec("engine-0", "serve")) as run:
        await run.screen.until(lambda: run.screen.served == 1)
        shutil.rmtree(logs)
        os.kill(run.pid("engine-0"), signal.SIGKILL)
        await run.screen.until(lambda: run.screen.count("engine-0 Ready") == 2)
    assert (logs / "engine-0.log").exists()


async def test_an_unwritable_log_is_reported_before_a_start(tmp_path: Path) -> None:
    (tmp_path / "engine-0.log").mkdir()
    async with running(tmp_path, spec("engine-0", "serve")) as run:
        with pytest.raises(ConfigError, match="set XDG_STATE_HOME"):
            await run.ended()
        assert run.screen.lines == []


async def test_no_process_starts_after_the_end_began(tmp_path: Path) -> None:
    told: list[str] = []
    screen = Recording()
    supervisor = Supervisor(
        [spec("engine-0", "exit", "2"), spec("frontend-0", "serve")],
        {"demo": tmp_path},
        screen,
        FAST,
        ending=lambda: told.extend(screen.lines),
    )
    with pytest.raises(ProcessFailed):
        await asyncio.wait_for(supervisor.run(), PATIENCE)
    assert told
    assert sum("Starting" in line for line in told) == screen.count("Starting") == 2


async def test_a_process_that_fails_its_liveness_probe_is_restarted(tmp_path: Path) -> None:
    sick = spec("engine-0", "sick")
    url = sick.readiness.url
    live = Probe(url.replace("ready", "live"), period=0.05, timeout=5, failures=3)
    up = Probe(url, period=0.05, timeout=5, failures=1000)
    async with running(tmp_path, replace(sick, liveness=live, startup=up)) as run:
        await run.screen.until(lambda: run.screen.count("engine-0 Starting") == 2)
        assert run.screen.count("Restarting its liveness probe failed 3 times, last with 503 stuck") == 1


async def test_a_process_that_never_starts_up_is_restarted(tmp_path: Path) -> None:
    absent = spec("engine-0", "serve")
    nowhere = Probe(f"http://127.0.0.1:{free_port()}", period=0.05, timeout=5, failures=2)
    async with running(tmp_path, replace(absent, liveness=nowhere, startup=nowhere)) as run:
        await run.screen.until(lambda: run.screen.count("Restarting its startup probe failed 2 times") == 1)


async def test_a_process_without_end_is_killed_after_its_grace(tmp_path: Path) -> None:
    async with running(tmp_path, spec("engine-0", "deaf", grace=0.1)) as run:
        await run.screen.until(lambda: run.screen.served == 1)
        run.supervisor.end()
        await run.ended()
        assert await run.all_gone()


async def test_asked_to_end_twice_kills_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, spec("engine-0", "deaf", grace=3600)) as run:
        await run.screen.until(lambda: run.screen.served == 1)
        os.kill(os.getpid(), signal.SIGINT)
        await run.screen.until(lambda: run.screen.count("Stopping") == 1)
        os.kill(os.getpid(), signal.SIGINT)
        await run.ended()
        assert len(run.screen.notes) == 2


async def test_engines_end_after_frontends(tmp_path: Path) -> None:
    engine = replace(spec("engine-0", "serve"), ends_last=True)
    async with running(tmp_path, engine, spec("frontend-0", "deaf", grace=0.1)) as run:
        await run.screen.until(lambda: run.screen.served == 1)
        run.supervisor.end()
        await run.ended()
    ends = [line for line in run.screen.lines if "Stop" in line]
    order = ["frontend-0 Stopping", "frontend-0 Stopped", "engine-0 Stopping", "engine-0 Stopped"]
    assert ends == order


async def test_asked_twice_engines_do_not_wait(tmp_path: Path) -> None:
    engine = replace(spec("engine-0", "deaf", grace=3600), ends_last=True)
    async with running(tmp_path, engine, spec("frontend-0", "deaf", grace=3600)) as run:
        await run.screen.until(lambda: run.screen.served == 1)
        run.supervisor.end()
        await run.screen.until(lambda: run.screen.count("Stopping") == 1)
        run.supervisor.end()
        await run.ended()


async def test_what_a_process_started_ends_with_it(tmp_path: Path) -> None:
    async with running(tmp_path, spec("engine-0", "breeds")) as run:
        await run.screen.until(lambda: run.screen.served == 1)
        run.supervisor.end()
        await run.ended()
        assert await run.all_gone()


async def test_told_to_end_while_pausing_it_does_not_start_again(tmp_path: Path) -> None:
    async with running(tmp_path, spec("engine-0", "exit", "1"), timing=Timing(first_pause=3600)) as run:
        await run.screen.until(lambda: run.screen.count("Restarting") == 1)
        run.supervisor.end()
        await run.ended()
        assert run.screen.count("Starting") == 1


SUPERVISE = """
import asyncio, os, sys
from pathlib import Path
from kvasir.local.supervision.process_spec import Probe, ProcessSpec
from kvasir.local.supervision.screen import make_screen
from kvasir.local.supervision.supervisor import ProcessFailed, Supervisor

fake, port, behaviour, pipe, logs = sys.argv[1:]
url = f"http://127.0.0.1:{port}"
spec = ProcessSpec(
    "demo", "frontend-0", (sys.executable, "-I", fake, port, behaviour), dict(os.environ),
    Probe(url, period=1, timeout=1, failures=1), None, None, f"{url}/status", grace=10, pass_fds=(int(pipe),),
)
supervisor = Supervisor([spec], {"demo": Path(logs)}, make_screen(["serving"], several=False))
asyncio.run(supervisor.run())
"""


@contextlib.asynccontextmanager
async def supervising_process(
    tmp_path: Path, behaviour: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """A supervisor in a process (and session) of its own, once it serves; with the read end of its child's pipe."""
    read_end, write_end = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SUPERVISE, str(FAKE), str(free_port()), behaviour, str(write_end), str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        pass_fds=(write_end,),
        start_new_session=True,
    )
    os.close(write_end)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            while (line := await process.stdout.readline()) != b"serving\n":
                assert line, "it ended before it served"
        yield process, read_end
    finally:
        os.close(read_end)
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_processes_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    async with supervising_process(tmp_path, "deaf") as (process, read_end):
        process.kill()
        async with asyncio.timeout(PATIENCE):
            assert await asyncio.to_thread(os.read, read_end, 1) == b""


async def test_ctrl_c_reaches_the_supervisor_alone(tmp_path: Path) -> None:
    async with supervising_process(tmp_path, "serve") as (process, read_end):
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == 0
            assert await asyncio.to_thread(os.read, read_end, 1) == b""
    assert (tmp_path / "frontend-0.log").read_text().endswith("asked to end\n")


async def test_a_supervisor_without_terminal_ends_its_processes(tmp_path: Path) -> None:
    async with supervising_process(tmp_path, "serve") as (process, read_end):
        process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            await process.wait()
            assert await asyncio.to_thread(os.read, read_end, 1) == b""
    assert (tmp_path / "frontend-0.log").read_text().endswith("asked to end\n")
