"""Throughput of many LoRA adapters in few slots, against one adapter for all requests.

    python -m bench.adapters /tmp/llama-126m
    python -m bench.adapters /tmp/llama-126m --adapters 64 --slots 4 --requests 256 --tokens 16

All requests are given at once, as an engine under load has them. The adapters have random numbers and adapt all
linear layers. The two kinds of run alternate, and the medians are compared.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from kvasir.benchmark.local_engine import LocalEngine, start_engine
from kvasir.config.hardware.machine import cpu_name
from kvasir.config.lora_settings import LoRAConfig
from kvasir.config.settings import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from kvasir.hub.adapters.adapter_info import read_adapter
from kvasir.link.protocol import AddRequest
from kvasir.request.adapter import Adapter
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed


def modules_of(config: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    query, kv = head_dim * config["num_attention_heads"], head_dim * config["num_key_value_heads"]
    for layer in range(config["num_hidden_layers"]):
        for name, size in (("q", query), ("k", kv), ("v", kv)):
            yield f"model.layers.{layer}.self_attn.{name}_proj", hidden, size
        yield f"model.layers.{layer}.self_attn.o_proj", query, hidden
        for name, inputs, outputs in (("gate", hidden, mlp), ("up", hidden, mlp), ("down", mlp, hidden)):
            yield f"model.layers.{layer}.mlp.{name}_proj", inputs, outputs


def write_adapter(path: Path, config: dict[str, Any], rank: int, seed: int) -> Adapter:
    numbers = np.random.default_rng(seed)
    tensors = {}
    for module, inputs, outputs in modules_of(config):
        for part, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
            values = 0.01 * numbers.standard_normal(shape)
            tensors[f"base_model.model.{module}.lora_{part}.weight"] = values.astype(np.float32)
    path.mkdir()
    save_file(tensors, path / "adapter_model.safetensors")
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank}
    (path / "adapter_config.json").write_text(json.dumps(fields))
    return read_adapter(str(path)).named(path.name)


class Measured(NamedTuple):
    rate: float  # tokens/s
    cpu: float  # CPU seconds per 1,000 tokens, of which other processes take none
    last: float  # when the last request began, as a share of the run


def run(engine: LocalEngine, adapters: Sequence[Adapter], args: argparse.Namespace, seed: int) -> Measured:
    numbers = np.random.default_rng(seed)
    params = SamplingParams(max_tokens=args.tokens, seed=0, temperature=0.0, ignore_eos=True)
    requests = [
        AddRequest(
            f"{seed} {number}",
            1,
            packed(numbers.integers(5, 1000, args.prompt).tolist()),
            b"",
            params,
            adapter=adapters[number % len(adapters)],
        )
        for number in range(args.requests)
    ]
    began = time.process_time()
    result = engine.run(requests, lambda done, total: None)
    cpu = time.process_time() - began
    tokens = result.output_tokens
    assert tokens == args.requests * args.tokens, "not every request has ended"
    last = max(each.first for each in result.requests.values())
    return Measured(tokens / result.seconds, 1000 * cpu / tokens, last / result.seconds)


def start(args: argparse.Namespace) -> LocalEngine:
    most = max(args.adapters, args.slots)
    return start_engine(
        EngineConfig(
            ModelConfig(args.model, max_model_len=256),
            cache=CacheConfig(enable_prefix_caching=False),
            scheduler=SchedulerConfig(max_num_seqs=args.rows),
            lora=LoRAConfig(True, args.slots, args.rank, most),
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    sizes = {"adapters": 64, "slots": 4, "rank": 16, "rows": 16, "requests": 256, "prompt": 32, "tokens": 16}
    for name, default in {**sizes, "rounds": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    config = json.loads((Path(args.model) / "config.json").read_text())
    engine = start(args)
    with tempfile.TemporaryDirectory() as folder:
        adapters = [
            write_adapter(Path(folder) / str(number), config, args.rank, number) for number in range(args.adapters)
        ]
        run(engine, adapters, args, seed=0)  # reads all of them
        kinds = {"one adapter": adapters[:1], "many": adapters}
        found: dict[str, list[Measured]] = {kind: [] for kind in kinds}
        for number in range(args.rounds * len(kinds)):
            kind = list(kinds)[number % len(kinds)]
            found[kind].append(run(engine, kinds[kind], args, seed=number + 1))
    engine.close()
    print(f"{cpu_name()}: {args.adapters} adapters of rank {args.rank} in {args.slots} slots, {args.rows} rows")
    rate = {kind: statistics.median(each.rate for each in all_of) for kind, all_of in found.items()}
    cpu = {kind: min(each.cpu for each in all_of) for kind, all_of in found.items()}
    for kind in kinds:
        print(f"{kind:12} {rate[kind]:8.1f} tokens/s, {cpu[kind]:6.2f} CPU seconds per 1,000 tokens")
    last = max(each.last for each in found["many"])
    by_cpu = cpu["one adapter"] / cpu["many"]
    print(f"ratio        {rate['many'] / rate['one adapter']:8.2f}, by CPU time {by_cpu:.2f}")
    print(f"of many, the last request began after {last:.0%} of the run")


if __name__ == "__main__":
    main()
