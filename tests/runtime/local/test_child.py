import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvasir.local.supervision.child import ChildProcess
from kvasir.local.supervision.process_spec import Probe, ProcessSpec
from runtime.local.supervised import spec


async def test_the_exit_code_of_an_ended_process_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio waits in a thread; a second wait for the exit code would take it away from there."""
    started, tell = os.pipe()
    code = (
        "import os, signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); "
        f"os.write({tell}, b'!'); signal.pause()"
    )
    probe = Probe("http://127.0.0.1:1", period=1, timeout=1, failures=1)
    described = ProcessSpec(
        service="demo",
        name="it",
        argv=(sys.executable, "-c", code),
        env=dict(os.environ),
        readiness=probe,
        liveness=None,
        startup=None,
        status_url="",
        grace=30,
        pass_fds=(tell,),
    )
    child = await ChildProcess.spawn(described, tmp_path / "log")
    os.close(tell)
    assert await asyncio.to_thread(os.read, started, 1) == b"!"
    os.close(started)
    monkeypatch.setattr(subprocess.Popen, "poll", lambda self: pytest.fail("a second wait"))
    await child.end(30, asyncio.Event())
    assert await child.wait() == 3


async def test_the_first_output_of_a_process_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = asyncio.create_subprocess_exec

    async def start_and_wait(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        process = await start(*arguments, **options)
        await process.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_and_wait)
    for _ in range(2):  # the second life does not show what the first one printed
        child = await ChildProcess.spawn(spec("engine-0", "exit", "2"), tmp_path / "log")
        assert child.last_lines() == ["this is exit", "the reason why"]
