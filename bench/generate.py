"""transformers' `generate` as a library, without a server: all streams are one batch. Runs in its environment.

    python bench/generate.py MODEL_DIRECTORY '[{"streams": 1, "input_len": 128, "output_len": 128, "requests": 6}]'

Prints one line of JSON: seconds until the model is loaded, a rate for each load, bytes of memory at the peak.
"""

import json
import os
import resource
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM


def main(folder: str, loads: list[dict[str, int]]) -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    loaded = time.clock_gettime(time.CLOCK_BOOTTIME) - spawned()
    rates = [rate(model, load) for load in loads]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"start_up": loaded, "rates": rates, "peak": peak}))


def spawned() -> float:
    # In seconds since the machine's start.
    with open("/proc/self/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


def rate(model: LlamaForCausalLM, load: dict[str, int]) -> float:
    """Return output tokens per second, after a batch that is not counted."""
    batches = max(1, load["requests"] // load["streams"])
    seconds = [once(model, load) for _ in range(batches + 1)][1:]
    return batches * load["streams"] * load["output_len"] / sum(seconds)


def once(model: LlamaForCausalLM, load: dict[str, int]) -> float:
    prompts = torch.randint(model.config.vocab_size, (load["streams"], load["input_len"]))
    length = load["output_len"]
    start = time.perf_counter()
    generate: Any = model.generate  # in some releases its self type excludes the classes of models
    generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=False,
        max_new_tokens=length,
        min_new_tokens=length,
    )
    return time.perf_counter() - start


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
