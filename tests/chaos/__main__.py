"""Kills and freezes workers of an engine in each of its phases: does it end at once, and does the service go on?

    make chaos
    make chaos CHAOS_ARGS="--rounds 20 --phases decode,idle --kinds kill --pipeline-parallel-size 1"

A frontend and rank 1 run all the time, with a stream on rank 1. In each round rank 0 starts. When its workers are
in the phase, one of them gets SIGKILL or SIGSTOP. The engine has to end with a non-zero exit code within --limit
seconds, after SIGSTOP within --worker-timeout more, with a log line that names the rank and the phase. No process,
shared memory or file may be left. The stream on rank 1 goes on, requests to rank 0 end with an error that names the
loss, and rank 1 answers the next one. Exit code 1 if any of this does not hold.

The last lines are a table: the median and the maximum time from the signal to the exit of the engine; and of kills,
the median times until the failure is noticed and until the engine's last log line.
"""

import argparse
import math
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from itertools import cycle, islice, product
from pathlib import Path

from chaos.chaos_round import KINDS, PHASES, Outcome, Plan, Round
from chaos.service import Service
from kvasir.config.machine import cpu_name


def plans(arguments: argparse.Namespace) -> list[Plan]:
    """Return the rounds: all cells of the table in turn, with the next rank as the victim each time."""
    chosen = random.Random(arguments.seed)
    options = ["--tensor-parallel-size", str(arguments.tensor_parallel_size)]
    if arguments.pipeline_parallel_size > 1:
        options += ["--pipeline-parallel-size", str(arguments.pipeline_parallel_size)]
    workers = arguments.tensor_parallel_size * arguments.pipeline_parallel_size
    cells = list(product(arguments.phases, arguments.kinds))
    result = []
    for number, (phase, kind) in enumerate(islice(cycle(cells), arguments.rounds)):
        victim = number // len(cells) % workers
        stage = victim // arguments.tensor_parallel_size
        one = str(chosen.randrange((stage + 1) * arguments.tensor_parallel_size))  # earlier stages wait for none
        result.append(
            Plan(
                phase=phase,
                kind=kind,
                victim=victim,
                held="all" if phase == "load" else chosen.choice(("all", one)),  # nothing is exchanged in load
                options=tuple(options),
                num_workers=workers,
                worker_timeout=arguments.worker_timeout,
                limit=arguments.limit,
            )
        )
    return result


def table(outcomes: Sequence[Outcome]) -> str:
    lines = [
        "| phase | kind | rounds | median, s | max, s | noticed, s | closed, s | violations |",
        "|" + "---|" * 8,
    ]
    for phase, kind in product(PHASES, KINDS):
        cell = [each for each in outcomes if (each.plan.phase, each.plan.kind) == (phase, kind)]
        if not cell:
            continue
        seconds = [each.seconds for each in cell]
        longest = max((value for value in seconds if value is not None), default=None)
        columns = [phase, kind, len(cell), _median(seconds), "" if longest is None else f"{longest:.3f}"]
        columns += [_median([each.noticed for each in cell]), _median([each.closed for each in cell])]
        columns.append(sum(bool(each.problems) for each in cell))
        lines.append(f"| {' | '.join(map(str, columns))} |")
    return "\n".join(lines)


def _median(values: list[float | None]) -> str:
    found = [value for value in values if value is not None]
    return f"{statistics.median(found):.3f}" if found else ""


def words(accepted: Sequence[str]) -> "argparse._ActionType":
    def parse(text: str) -> list[str]:
        if unknown := set(text.split(",")) - set(accepted):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(accepted)}")
        return text.split(",")

    return parse


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--phases", type=words(PHASES), default=list(PHASES))
    parser.add_argument("--kinds", type=words(list(KINDS)), default=list(KINDS))
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=2)
    parser.add_argument("--pipeline-parallel-size", "-pp", type=int, default=2)
    parser.add_argument("--worker-timeout", type=float, default=3.0, help="seconds, in rounds that freeze")
    parser.add_argument("--limit", type=float, default=1.0, help="seconds for an end")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="kv") as folder:
        service = Service(Path(folder))
        try:
            for number, plan in enumerate(plans(arguments)):
                outcome = Round(service, plan, f"{arguments.seed}-{os.getpid()}-{number}").run()
                outcomes.append(outcome)
                who = f"worker {plan.victim}, held: {plan.held}"
                print(
                    f"{number + 1}: {plan.phase} {plan.kind} ({who}): {outcome.seconds or math.nan:.3f} s",
                    flush=True,
                )
                for problem in outcome.problems:
                    print(f"    {problem}", flush=True)
        finally:
            service.close()
            print(f"\n{table(outcomes)}\nload {os.getloadavg()[0]:.1f} at the end")
    return int(any(outcome.problems for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
