"""The verdict of a chaos run finds what an engine leaves behind, and a message without the rank or the phase."""

import argparse
import os
import subprocess
import sys
import time

import pytest

from chaos.__main__ import plans, table
from chaos.chaos_round import Outcome, Plan, names_failure
from chaos.leftovers import MARK, left_shared_memory, shared_memory, wait_until_gone

PLAN = Plan("decode", "kill", 1, "all", (), 2, worker_timeout=3.0, limit=1.0)


@pytest.mark.parametrize(
    ("kind", "line", "named"),
    [
        ("kill", "ERROR engine-0 worker 1 was killed by SIGKILL in phase decode of step 3 for 0.1 s", True),
        ("kill", "ERROR engine-0 worker 1 (TP 1) was killed by SIGKILL in phase decode of step 3 for 0.1 s", True),
        ("kill", "INFO engine-0 worker 1 was killed by SIGKILL in phase decode of step 3 for 0.1 s", False),
        ("kill", "ERROR engine-0 worker 0 was killed by SIGKILL in phase decode of step 3 for 0.1 s", False),
        ("kill", "ERROR engine-0 worker 1 was killed by SIGKILL in phase prefill of step 3 for 0.1 s", False),
        ("freeze", "ERROR engine-0 worker 1 has been stopped for 3 s in phase decode of step 3", True),
        (
            "freeze",
            "ERROR engine-0 no reply: worker 0 is in phase decode; worker 1 is stopped in phase decode",
            True,
        ),
        (
            "freeze",
            "ERROR engine-0 no reply: worker 0 is stopped in phase decode; worker 1 is in phase decode",
            False,
        ),
    ],
)
def test_a_line_has_to_name_rank_and_phase(kind: str, line: str, named: bool) -> None:
    plan = Plan("decode", kind, 1, "all", (), 2, worker_timeout=3.0, limit=1.0)
    assert names_failure(f"INFO before\n{line}\nINFO after", plan) == named


def test_an_orphan_is_found_by_its_mark_until_it_has_ended() -> None:
    mark = f"test-{os.getpid()}"
    script = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'])"
    reading, writing = os.pipe()
    subprocess.run([sys.executable, "-c", script], env={**os.environ, MARK: mark}, stdin=reading, check=True)
    assert len(wait_until_gone(mark, time.monotonic())) == 1
    os.close(writing)
    assert wait_until_gone(mark, time.monotonic() + 30) == []
    os.close(reading)


def test_a_file_of_shared_memory_is_left_if_no_process_uses_it() -> None:
    before = shared_memory()
    name = f"kvasir-test-{os.getpid()}"
    with open(f"/dev/shm/{name}", "w") as file:
        file.write("x")
    try:
        assert name in left_shared_memory(before)
    finally:
        os.unlink(f"/dev/shm/{name}")


def test_a_victim_never_waits_for_a_later_stage() -> None:
    """An earlier stage has finished the step, and is in the phase idle."""
    arguments = argparse.Namespace(seed=0, rounds=200, phases=["decode"], kinds=["kill"], limit=1.0)
    arguments.tensor_parallel_size, arguments.pipeline_parallel_size, arguments.worker_timeout = 2, 2, 3.0
    held = {(plan.victim, plan.held) for plan in plans(arguments) if plan.held != "all"}
    assert held == {(victim, str(rank)) for victim in range(4) for rank in range(4) if rank // 2 <= victim // 2}


def test_rounds_cover_all_cells_and_the_table_counts_violations() -> None:
    arguments = argparse.Namespace(
        seed=1, rounds=8, phases=["load", "idle"], kinds=["kill", "freeze"], tensor_parallel_size=2
    )
    arguments.pipeline_parallel_size, arguments.worker_timeout, arguments.limit = 2, 3.0, 1.0
    planned = plans(arguments)
    cells = [(plan.phase, plan.kind) for plan in planned]
    assert cells == 2 * [("load", "kill"), ("load", "freeze"), ("idle", "kill"), ("idle", "freeze")]
    assert {plan.num_workers for plan in planned} == {4}
    assert [plan.victim for plan in planned] == 4 * [0] + 4 * [1]
    assert planned[0].options == ("--tensor-parallel-size", "2", "--pipeline-parallel-size", "2")
    assert (planned[0].max_seconds, planned[1].max_seconds) == (1.0, 4.0)
    text = table([Outcome(PLAN, 0.25, 0.1, 0.2), Outcome(PLAN, 0.75, None, None, ["a problem"]), Outcome(PLAN)])
    assert text.splitlines()[2:] == ["| decode | kill | 3 | 0.500 | 0.750 | 0.100 | 0.200 | 1 |"]
