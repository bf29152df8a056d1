"""`kvasir chaos` kills, freezes and drains engines of a real service, and finds every answer as it should be."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvasir.chaos.disturbances import DisturbanceKind
from kvasir.chaos.local_target import LocalTarget
from kvasir.config.options import CommandFailed, ConfigError
from service.running import running

LIMIT = 600
FREEZE = "6s"
"""Longer than the heartbeat timeout, and shorter than the liveness probe allows."""


def test_nothing_is_lost_or_wrong(tmp_path: Path) -> None:
    options = ("--dtype", "float32", "--threads", "1", "--heartbeat-timeout", "3s", "--port", "0")
    with running("serve", "demo://", "--data-parallel-size", "2", *options) as service:
        before = {engine.name: engine.pid for engine in service.engines()}
        file = tmp_path / "report.json"
        words = ["--requests", "30", "--questions", "26", "--concurrency", "4", "--seed", "3", "--json", str(file)]
        words += ["--tolerance", "0"]  # float32 on a CPU is batch-invariant: log probabilities are the same bits
        words += ["--kills", "1", "--freezes", "1", "--drains", "1", "--freeze-time", FREEZE, "--pause", "0.5s"]
        ended = subprocess.run(
            [sys.executable, "-m", "kvasir.cli.main", "chaos", service.url, *words],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "rejects" not in ended.stderr  # every kind of request was sent
        figures = json.loads(file.read_text())
        assert {kind: each["count"] for kind, each in figures["disturbances"].items()} == {
            "kill": 1,
            "freeze": 1,
            "drain": 1,
        }
        assert figures["requests"] >= 30
        assert [figures[name] for name in ("lost", "wrong", "invalid", "refused")] == [0, 0, 0, 0]
        assert "0 lost, 0 wrong, 0 invalid" in ended.stdout
        assert {engine.name: engine.pid for engine in service.engines()} != before


@pytest.mark.asyncio
async def test_target_has_the_engines_of_its_service_only() -> None:
    with running("serve", "demo://", "--port", "0") as one, running("serve", "demo://", "--port", "0") as other:
        target, of_other = (LocalTarget(int(each.url.rpartition(":")[2]), 0.1) for each in (one, other))
        [engine] = one.engines()
        assert [process.pid for process in target.processes()] == [engine.pid]
        assert await target.engines() == ["0"]
        [untouched] = other.engines()
        await target.disturb(DisturbanceKind.KILL, "0")
        one.read_until(signal.SIGKILL.name)
        assert [process.pid for process in other.engines()] == [untouched.pid]
        # No engine is left for a moment: that does not end a run.
        os.kill(other.process.pid, signal.SIGSTOP)  # it cannot start the next engine
        try:
            await of_other.disturb(DisturbanceKind.KILL, "0")
            while of_other.processes():  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)
            assert await of_other.engines() == []
        finally:
            os.kill(other.process.pid, signal.SIGCONT)
    with pytest.raises(CommandFailed, match="the service has ended"):
        await of_other.engines()


def test_port_without_a_service_is_refused() -> None:
    with pytest.raises(ConfigError, match="listens at port 9 "):
        LocalTarget(9, 1.0)
