"""Bytes of KV cache that requests hold: with a KV group for each kind of layer, and with full attention everywhere.

python bench/kv_bytes.py    # Gemma 3 1B at 8,192 tokens; Mistral 7B v0.1 at 32,768 is:
python bench/kv_bytes.py --layers 32 --every 0 --window 4096 --kv-heads 8 --head-dim 128 --context 32768

Runs the scheduler and the KV manager without a model: the bytes depend on shapes and steps alone.
"""

import argparse
from collections.abc import Sequence

from kvasir.engine.kv.kv_manager import KVManager
from kvasir.engine.scheduling.engine_request import EngineRequest
from kvasir.engine.scheduling.scheduler import Scheduler
from kvasir.layers.kv import BlockShape, KVCacheConfig, block_bytes, layer_specs, make_groups
from kvasir.link.protocol import AddRequest
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from kvasir.worker.step import StepOutput

OUTPUT = 64
MANY_BLOCKS = 2**20


def windows_of(layers: int, every: int, window: int) -> list[int | None]:
    """Return a window for each layer, and None for every `every`-th one (0: for none)."""
    return [None if every and (layer + 1) % every == 0 else window for layer in range(layers)]


def bytes_held(
    block: BlockShape, windows: Sequence[int | None], context: int, chunk: int, requests: int
) -> tuple[int, int]:
    """Return the most bytes that the requests held at a time, and those that they held at the end."""
    groups = make_groups(layer_specs(block, windows, max_model_len=4 * context))
    manager = KVManager(KVCacheConfig(groups, MANY_BLOCKS), prefix_caching=False, longest_chunk=chunk)
    scheduler = Scheduler(
        manager,
        max_num_seqs=requests,
        max_num_batched_tokens=chunk,
        max_model_len=2 * context,
        eos_token_ids=[],
    )
    params = SamplingParams(max_tokens=OUTPUT + 1, seed=0)
    for name in range(requests):
        prompt = packed([1] * (context - OUTPUT))
        scheduler.add(EngineRequest("bench", AddRequest(str(name), 1, prompt, b"", params)))
    most = last = 0
    while (step := scheduler.schedule()) is not None:
        last = manager.pool.num_used or last
        most = max(most, last)
        known = {name: request.num_tokens for name, request in scheduler.requests.items()}
        ends = [(row.request_id, row.num_computed_tokens + row.num_new_tokens) for row in step.scheduled]
        scheduler.update(StepOutput([[1] if known[name] == end else [] for name, end in ends]))
    return most * block_bytes(groups), last * block_bytes(groups)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=26)
    parser.add_argument("--every", type=int, default=6, help="one layer of full attention in so many; 0: none")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--kv-heads", type=int, default=1)
    parser.add_argument("--head-dim", type=int, default=256)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--requests", type=int, default=1)
    parser.add_argument("--chunks", type=int, nargs="+", default=[512, 2048, 8192], help="tokens of a step")
    args = parser.parse_args()
    block = BlockShape(args.block_size, args.kv_heads, args.head_dim, "bfloat16", 2)
    windows = windows_of(args.layers, args.every, args.window)
    num_groups = len(make_groups(layer_specs(block, windows, 4 * args.context)))
    print(f"{args.requests} requests of {args.context} tokens, KV groups with windows: {num_groups}")
    for chunk in args.chunks:
        full, _ = bytes_held(block, [None] * args.layers, args.context, chunk, args.requests)
        most, decoding = bytes_held(block, windows, args.context, chunk, args.requests)
        print(
            f"chunks of {chunk}: full attention {full / 2**20:.1f} MiB, with windows {most / 2**20:.1f} MiB at "
            f"most and {decoding / 2**20:.1f} MiB while decoding"
        )


if __name__ == "__main__":
    main()
