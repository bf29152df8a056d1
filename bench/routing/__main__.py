"""Compare ways to route requests, on a simulated clock.

    python -m bench.routing                     all synthetic traces and policies
    python -m bench.routing --trace hot --policy kvasir --frontends 2
    python -m bench.routing --recorded mooncake.jsonl --requests 2000 --speed 4

The engines have real schedulers, prefix caches and reports; the time of a step is computed. The hit rate is the
share of prompt tokens that engines found in their caches. "Any cache" is the share that a cache without limits,
shared by all engines, would hold.
"""

import argparse
import os
import random
import statistics
from pathlib import Path

from kvasir.config.hardware.machine import cpu_name

from .engines import Size, Speed
from .policies import POLICIES
from .simulation import Results, Simulation
from .traces import SYNTHETIC, Session, recorded

# How much slower one engine is in the trace of that name.
SLOW = 3.0
COLUMNS = ("trace", "policy", "hits", "any cache", "p50, ms", "p99, ms", "max/mean busy", "decision, µs", "p99, µs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", default="", help="only traces whose name begins so")
    parser.add_argument("--policy", default="", help="only policies whose name begins so")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--frontends", type=int, default=1)
    parser.add_argument("--rows", type=int, default=Size.rows)
    parser.add_argument("--blocks", type=int, default=Size.blocks, help="KV blocks of 16 tokens in each engine")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recorded", type=Path, help="a recorded trace instead, see traces.py::recorded")
    parser.add_argument("--requests", type=int, default=2000, help="of the recorded trace")
    parser.add_argument("--speed", type=float, default=1.0, help="of the recorded trace")
    arguments = parser.parse_args()
    print(f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{arguments.engines} engines, {arguments.frontends} frontends, seed {arguments.seed}\n")
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    size = Size(arguments.rows, arguments.blocks)
    for trace, sessions in _traces(arguments).items():
        speeds = [Speed()] * arguments.engines
        if trace == "one slow engine":
            speeds[0] = Speed(factor=SLOW)
        for policy, kind in POLICIES.items():
            if policy.startswith(arguments.policy):
                results = Simulation(kind, sessions, speeds, size, arguments.frontends).run()
                print(_row(trace, policy, results), flush=True)


def _traces(arguments: argparse.Namespace) -> dict[str, list[Session]]:
    if arguments.recorded is not None:
        sessions = recorded(arguments.recorded, arguments.requests, arguments.speed)
        return {arguments.recorded.name: list(sessions)}
    return {
        name: list(make(random.Random(arguments.seed)))
        for name, make in SYNTHETIC.items()
        if name.startswith(arguments.trace)
    }


def _row(trace: str, policy: str, results: Results) -> str:
    decisions = sorted(results.decisions)
    cells = [
        trace,
        policy,
        f"{results.hit_rate:.1%}",
        f"{results.known_tokens / results.prompt_tokens:.1%}",
        f"{results.first_token(0.5) * 1e3:.0f}",
        f"{results.first_token(0.99) * 1e3:.0f}",
        f"{results.imbalance:.2f}",
        f"{statistics.median(decisions) * 1e6:.0f}",
        f"{decisions[int(0.99 * len(decisions))] * 1e6:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
