"""Simulate an hour of scaling by load: `python -m bench.autoscaling [--queue 2] [--ttft 1] [--kv 0.8]`."""

import argparse
import random

from kvasir_operator.autoscaling_spec import AutoscalingSpec, LoadTargets

from .simulation import Model, Simulation, percentile
from .traces import HOUR, TRACES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queue", type=float, default=None, help="target of the wait, in seconds")
    parser.add_argument("--ttft", type=float, default=None, help="target of the first token, in seconds")
    parser.add_argument("--kv", type=float, default=None, help="target of the KV cache's use, 0 to 1")
    parser.add_argument("--max-ranks", type=int, default=8)
    parser.add_argument("--down-after", type=float, default=300.0)
    parser.add_argument("--start", type=float, default=Model.start_seconds, help="seconds until an engine is ready")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    queue = 2.0 if (options.queue, options.ttft, options.kv) == (None, None, None) else options.queue
    targets = LoadTargets(queue, options.kv, options.ttft)
    spec = AutoscalingSpec(1, options.max_ranks, targets=targets, scale_down_after=options.down_after)
    for name, trace in TRACES.items():
        arrivals = list(trace(random.Random(options.seed)))
        results = Simulation(spec, arrivals, model=Model(start_seconds=options.start)).run()
        print(
            f"{name:7} {len(results.waits):6} requests, wait p95 {percentile(results.waits, 0, HOUR):6.2f} s, "
            f"first token p95 {percentile(results.first_tokens, 0, HOUR):6.2f} s, "
            f"{results.engine_seconds / HOUR:.2f} engines on average, {results.turns} turns: "
            + " ".join(f"{at:.0f}:{size}" for at, size in results.sizes)
        )


if __name__ == "__main__":
    main()
