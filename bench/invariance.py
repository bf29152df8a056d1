"""The cost of batch-invariant products: steps of two workers in turn, with and without.

python bench/invariance.py DIR               # prefills of 512 tokens; decodes of 1, 16 and 64 requests of 64 tokens
python bench/invariance.py DIR --dtype bfloat16 --threads 2 --rounds 21

Prints medians of the CPU time of a step, which other processes change less than the time on the clock. All requests
lie in the same KV blocks, so the answers have no meaning.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from kvasir.config.device_facts import DeviceFacts
from kvasir.config.resolve import ModelFacts, resolve_engine
from kvasir.config.settings import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from kvasir.hub.model_info import ModelInfo, load_model_info
from kvasir.layers.kv import KVGroup
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from kvasir.worker.step import NO_NEW_BLOCKS, NewRow, ScheduledRow, StepInput
from kvasir.worker.worker import Worker

CONTEXT = 64
MACHINE = DeviceFacts(kind="cpu", name="", cores=1, memory_limit=2**50, fast_bfloat16=False)


def new_worker(info: ModelInfo, batch_invariant: str, args: argparse.Namespace) -> Worker:
    config = EngineConfig(
        ModelConfig("bench", max_model_len=1024),
        device=DeviceConfig(
            device="cpu",
            dtype=args.dtype,
            batch_invariant=batch_invariant,
            threads=args.threads,
            load_format="dummy",
        ),
        cache=CacheConfig(num_gpu_blocks_override=64),
    )
    worker = Worker(resolve_engine(config, ModelFacts(args.dtype, 1024, None), MACHINE), info)
    worker.load(lambda done, total: None)
    worker.allocate_kv_cache(worker.kv_layout().num_blocks, 1024)
    worker.warm_up()
    return worker


def seconds(
    worker: Worker, groups: Sequence[KVGroup], requests: int, tokens: int, decodes: int
) -> tuple[float, float]:
    """Return the CPU time of a prefill of `tokens` by each of the requests, and of one of the decodes after it."""
    names = [str(index) for index in range(requests)]
    params = SamplingParams(max_tokens=decodes + 1, seed=0, temperature=0.0)
    blocks = [list(range(1, 2 + (tokens + decodes) // groups[0].spec.block.block_size)) for _ in groups]
    new = [NewRow(name, packed([1] * tokens), tokens, params) for name in names]
    begun = time.process_time()
    worker.execute(StepInput([], new, [ScheduledRow(name, 0, tokens, blocks) for name in names]))
    prefilled = time.process_time()
    for step in range(decodes):
        rows = [ScheduledRow(name, tokens + step, 1, NO_NEW_BLOCKS) for name in names]
        worker.execute(StepInput([], [], rows))
    ended = time.process_time()
    worker.execute(StepInput(names, [], []))
    return prefilled - begun, (ended - prefilled) / max(1, decodes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="DIR", help="with config.json; the weights are random numbers")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()
    info = load_model_info(args.model)
    workers = [new_worker(info, switch, args) for switch in ("on", "off")]
    groups = workers[0].kv_layout().groups
    for name, requests, tokens, decodes in (
        ("prefill of 512", 1, 512, 0),
        ("decode of 1", 1, CONTEXT, 4),
        ("decode of 16", 16, CONTEXT, 4),
        ("decode of 64", 64, CONTEXT, 2),
    ):
        place = 0 if decodes == 0 else 1
        taken = [[seconds(worker, groups, requests, tokens, decodes)[place] for worker in workers]]
        taken += [
            [seconds(worker, groups, requests, tokens, decodes)[place] for worker in workers]
            for _ in range(args.rounds)
        ]
        on, off = (statistics.median(column) for column in zip(*taken[1:], strict=True))
        print(f"{name}: on {on * 1e3:.1f} ms, off {off * 1e3:.1f} ms, ratio {on / off:.2f}", flush=True)


if __name__ == "__main__":
    main()
