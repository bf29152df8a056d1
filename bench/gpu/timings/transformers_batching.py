"""transformers' continuous batching on requests of workload.py, for comparison."""

import inspect
import statistics
import time
from typing import Any

import torch
from bench.gpu.shapes import MODELS, tiny
from bench.gpu.timings.workload import LONGEST, TEMPERATURE, TOKENS, requests
from bench.gpu.worker import Context

REQUESTS = 64
# Seconds; then the tokens of the requests that have ended count.
LIMIT = 75.0


def run(context: Context, argument: str) -> None:
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    shape = tiny(MODELS[argument]) if context.tiny else MODELS[argument]
    fields = shape.config("bfloat16")
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    dtype = torch.bfloat16 if context.on_gpu else torch.float32
    with torch.device(context.device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()
    asked = requests(2, 6, 100) if context.tiny else requests(REQUESTS, LONGEST, TOKENS)
    # No token ends a request: its length is given.
    generation = GenerationConfig(do_sample=True, temperature=TEMPERATURE, top_k=0, eos_token_id=-1, pad_token_id=0)
    with torch.inference_mode():
        manager = model.init_continuous_batching(generation_config=generation, **_options(transformers))
        manager.start()
        try:
            manager.add_request([2] * 8, max_new_tokens=4)
            _lengths(manager, 1, time.perf_counter())  # it compiles and captures graphs before
            began = time.perf_counter()
            for prompt, output in asked:
                manager.add_request(prompt, max_new_tokens=output)
            lengths, ends = _lengths(manager, len(asked), began)
            seconds = time.perf_counter() - began
        finally:
            manager.stop(block=True, timeout=10)
    if not lengths:
        raise RuntimeError("no request has ended")
    rate = sum(lengths) / seconds
    figures = {
        "version": transformers.__version__,
        "requests": len(asked),
        "ended": len(lengths),
        "output_tokens": sum(lengths),
        "seconds": seconds,
        "output_tokens_per_second": rate,
        "median_end_seconds": statistics.median(ends),
    }
    context.record("transformers", figures)
    context.line(
        f"transformers {transformers.__version__}: {len(lengths)} of {len(asked)} requests, {sum(lengths)} output "
        f"tokens in {seconds:.2f} s = {rate:.0f} tok/s"
    )


def _options(transformers: Any) -> dict[str, Any]:
    """Return options that keep it from looking for kernels to download, if this version has them."""
    kind = getattr(transformers, "ContinuousBatchingConfig", None)
    if kind is None or "auto_switch_to_flash" not in inspect.signature(kind).parameters:
        return {}
    return {"continuous_batching_config": kind(auto_switch_to_flash=False)}


def _lengths(manager: Any, count: int, began: float) -> tuple[list[int], list[float]]:
    """Return the tokens and the ends of the requests that ended within the limit."""
    lengths: list[int] = []
    ends: list[float] = []
    while len(lengths) < count and time.perf_counter() - began < LIMIT:
        result = manager.get_result(timeout=1)
        if result is None:
            if not manager.is_running():
                raise RuntimeError("its thread has ended")
        elif result.is_finished():
            if result.error is not None:
                raise RuntimeError(result.error)
            lengths.append(len(result.generated_tokens))
            ends.append(time.perf_counter() - began)
    return lengths, ends
