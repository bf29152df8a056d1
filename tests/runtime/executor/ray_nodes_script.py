"""An engine over two nodes that Ray places, without a frontend: writes what happened as JSON.

python ray_nodes_script.py FILE
"""

import json
import os
import signal
import sys
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.nodes import NodesConfig
from kvasir.config.settings import CacheConfig, DeviceConfig, EngineConfig, ModelConfig, SchedulerConfig
from kvasir.engine.build import build_core, prepare_workers, resolve_settings
from kvasir.executor.executor_for import executor_for
from kvasir.executor.nodes.lead import lead
from kvasir.hub.model_info import load_model_info
from kvasir.hub.source import fetch
from kvasir.link.protocol import AddRequest
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from runtime.executor.nodes.node_pair import free_port
from runtime.executor.processes import children_of, named, seconds_until_gone

PROMPT = [5, 6, 7]
MAX_TOKENS = 12
WAIT = 60.0
MAX_SECONDS = 20.0


def run() -> dict[str, Any]:
    """Two nodes of Ray have a worker each; then the process of the second node is killed."""
    config = EngineConfig(
        model=ModelConfig("demo://"),
        device=DeviceConfig(device="cpu", dtype="float32", threads=1),
        cache=CacheConfig(num_gpu_blocks_override=60),
        scheduler=SchedulerConfig(max_num_seqs=4),
        executor=ExecutorConfig(tensor_parallel_size=2, distributed_executor_backend="ray"),
        nodes=NodesConfig(nnodes=2, master_addr="127.0.0.1", master_port=free_port()),
    )
    model = load_model_info(fetch("demo://", weights=True))
    leader = lead(config, model, wait=lambda: None, drain=lambda: None)
    failures: SimpleQueue[Exception] = SimpleQueue()
    settings = resolve_settings(config, model)
    executor = executor_for(settings, model, remote=leader)
    executor.start(lambda done, total: None, failures.put)
    settings, cache = prepare_workers(executor, settings, asked=None)
    core = build_core(settings, model, cache, executor)
    params = SamplingParams(max_tokens=MAX_TOKENS, seed=0, temperature=0.0, ignore_eos=True)
    core.add("frontend", AddRequest("a", 1, packed(PROMPT), b"", params))
    tokens: list[int] = []
    while core.has_work:
        for message in core.step().values():
            tokens += [token for output in message.outputs for token in output.token_ids]
    [member] = named("ray::RayNodeActor")
    workers = children_of(member)
    os.kill(member, signal.SIGKILL)
    error = failures.get(timeout=WAIT)
    seconds_until_gone(workers, MAX_SECONDS)
    executor.shutdown()
    leader.close("the test ends")
    return {"tokens": tokens, "workers": len(workers), "error": str(error)}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(run()))
