"""CPU time of one `schedule()` that admits a burst of requests: `python -m bench.admission`.

The scheduler runs alone, with a pool in which all requests fit. To compare two versions, alternate between them.
"""

import statistics
import time

from kvasir.engine.kv.kv_manager import KVManager
from kvasir.engine.scheduling.engine_request import EngineRequest
from kvasir.engine.scheduling.scheduler import Scheduler
from kvasir.engine.scheduling.token_budget import TokenBudget
from kvasir.layers.kv import BlockShape, FullAttention, KVCacheConfig, KVGroup, KVSpec, SlidingWindow
from kvasir.link.protocol import AddRequest
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed

BLOCK = BlockShape(16, kv_heads=1, head_dim=8, dtype="float32", dtype_bytes=4)
PROMPT = 64
LENGTH = 4096


def schedule_ms(burst: int, windows: int) -> float:
    """Return the milliseconds for a burst, with a group of full attention and `windows` groups of windows."""
    specs: list[KVSpec] = [FullAttention(BLOCK), *(SlidingWindow(BLOCK, 512) for _ in range(windows))]
    groups = tuple(KVGroup(spec, (layer,)) for layer, spec in enumerate(specs))
    blocks = KVManager(KVCacheConfig(groups, 200_000), prefix_caching=True, longest_chunk=PROMPT)
    tokens = burst * PROMPT
    scheduler = Scheduler(
        blocks,
        max_num_seqs=burst,
        max_num_batched_tokens=tokens,
        max_model_len=LENGTH,
        eos_token_ids=(),
        budget=TokenBudget(tokens),
    )
    params = SamplingParams(max_tokens=512, seed=0)
    for i in range(burst):
        prompt = packed([i, *range(1, PROMPT)])
        scheduler.add(EngineRequest("frontend", AddRequest(f"r{i}", 0, prompt, packed([]), params)))
    begin = time.process_time()
    step = scheduler.schedule()
    took = time.process_time() - begin
    assert step is not None
    assert len(step.new) == burst
    return 1000 * took


if __name__ == "__main__":
    for burst, windows in ((256, 0), (1024, 0), (256, 5)):
        median = statistics.median(schedule_ms(burst, windows) for _ in range(7))
        print(f"{burst} requests, {windows + 1} KV groups: {median:.1f} ms")
