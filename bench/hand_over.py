"""Cost of a KV hand-over between two engines, against the computation of the same prompt: CPU time and wall time.

python bench/make_llama.py /tmp/llama-126m
python bench/hand_over.py /tmp/llama-126m --tokens 1024 2048 4096 --rounds 5

Both engines are in this process, so the CPU time of a hand-over is that of both sides. Each round computes a prompt
in one engine, then in the other, then empties the other's cache and hands the blocks over. Times are those until
the first token.
"""

import argparse
import queue
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kvasir.config.settings import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from kvasir.engine.build import build_core, prepare_workers, resolve_settings
from kvasir.engine.handover.events import HandOverEvent
from kvasir.engine.handover.exchange import Exchange
from kvasir.engine.handover.hand_over import HandOver
from kvasir.executor.executor_for import executor_for
from kvasir.hub.located_model import read_model
from kvasir.hub.source import fetch, normalise
from kvasir.link.protocol import AddRequest
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from kvasir.wire.keys import LinkKeys, load_shared_keys
from kvasir_operator.link_keys import new_link_keys

Events = queue.SimpleQueue[tuple["Engine", HandOverEvent]]


@dataclass
class Cost:
    """Seconds."""

    wall: float
    cpu: float
    # Prompt tokens that were not computed.
    cached: int


class Engine:
    """A core with an exchange, without a frontend."""

    def __init__(self, config: EngineConfig, keys: LinkKeys | None, events: Events, address: str) -> None:
        model = read_model(config.model, fetch(normalise(config.model.source), weights=True))
        settings = resolve_settings(config, model)
        executor = executor_for(settings, model)
        executor.start(lambda done, total: None, lambda error: None)
        settings, cache = prepare_workers(executor, settings, asked=None)
        while executor.work_ahead():
            pass
        self.hand_over = HandOver()
        self.core = build_core(settings, model, cache, executor, [self.hand_over])
        memory = executor.block_bytes()
        assert memory is not None, "the KV cache is not in this process"
        self.block_bytes, self.block_size = memory.block_bytes, settings.block_size
        self.exchange = Exchange(memory, "bench", keys, partial(self._put, events))
        self.address = self.exchange.listen(address)
        self.exchange.start()
        self.hand_over.open(self.core.scheduler, self.exchange)

    def _put(self, events: Events, event: HandOverEvent) -> None:
        events.put((self, event))


def cost(engine: Engine, events: Events, name: str, prompt: list[int], source: str = "") -> Cost:
    """Run a request for one token, and handle the hand-overs of both engines meanwhile."""
    params = SamplingParams(max_tokens=1, seed=0, temperature=0, ignore_eos=True)
    wall, cpu, cached = time.perf_counter(), time.process_time(), 0
    engine.core.add("bench", AddRequest(name, 1, packed(prompt), b"", params, kv_source=source))
    while engine.core.has_requests:
        if engine.core.has_work:
            for outputs in engine.core.step().values():
                cached = outputs.outputs[0].num_cached_tokens or cached
            engine.hand_over.after_step()
        else:
            owner, event = events.get()
            owner.hand_over.handle(event)
    while engine.core.has_work:
        engine.core.step()
    spent = Cost(time.perf_counter() - wall, time.process_time() - cpu, cached)
    while not events.empty():
        owner, event = events.get()
        owner.hand_over.handle(event)
    return spent


def compare(giver: Engine, taker: Engine, events: Events, tokens: int, rounds: int) -> None:
    computed, handed = [], []
    for number in range(rounds):
        prompt = random.Random(f"{tokens} {number}").choices(range(10, 4000), k=tokens)
        cost(giver, events, "warm", prompt)
        taker.core.scheduler.blocks.reset_prefix_cache()
        computed.append(cost(taker, events, "computed", prompt))
        taker.core.scheduler.blocks.reset_prefix_cache()
        handed.append(cost(taker, events, "handed over", prompt, giver.address))
        if handed[-1].cached < tokens - 2 * taker.block_size:
            raise RuntimeError(f"only {handed[-1].cached} of {tokens} tokens were handed over")
    mib = (tokens // taker.block_size) * taker.block_bytes / 2**20
    wall = [statistics.median(each.wall for each in costs) for costs in (computed, handed)]
    cpu = [statistics.median(each.cpu for each in costs) for costs in (computed, handed)]
    print(
        f"{tokens:5d} tokens, {mib:6.1f} MiB | computed {wall[0]:7.3f} s wall {cpu[0]:7.3f} s CPU | handed over "
        f"{wall[1]:6.3f} s wall {cpu[1]:6.3f} s CPU | ratio {wall[1] / wall[0]:.3f} wall {cpu[1] / cpu[0]:.3f} CPU",
        flush=True,
    )


def engine_keys(directory: Path) -> LinkKeys:
    for name, key in new_link_keys().items():
        (directory / name).write_text(key)
    return load_shared_keys(str(directory))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--encrypted", action="store_true", help="over TCP with CURVE; otherwise a Unix socket")
    args = parser.parse_args()
    config = EngineConfig(
        ModelConfig(args.model), DeviceConfig(dtype=args.dtype), CacheConfig(kv_cache_memory_bytes=2**30)
    )
    events: Events = queue.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="kv") as directory:
        keys = engine_keys(Path(directory)) if args.encrypted else None
        address = "tcp://127.0.0.1:0" if args.encrypted else f"ipc://{directory}/"
        giver, taker = (
            Engine(config, keys, events, address if args.encrypted else address + name)
            for name in ("giver", "taker")
        )
        for tokens in args.tokens:
            compare(giver, taker, events, tokens, args.rounds)
        for engine in (giver, taker):
            engine.exchange.close()


if __name__ == "__main__":
    main()
