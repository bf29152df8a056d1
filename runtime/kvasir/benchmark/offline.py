"""`kvasir bench throughput` and `latency`: the speed of an engine without server or tokenizer."""

import random
import resource
import statistics
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from kvasir.benchmark.device_use import decode_bytes, prefill_operations
from kvasir.benchmark.figures import Figures, percentiles, time_lines
from kvasir.benchmark.local_engine import LocalEngine, Run, start_engine
from kvasir.benchmark.workload import OfflineWorkload, lengths
from kvasir.config.options import CommandFailed, ConfigError
from kvasir.config.settings import EngineConfig
from kvasir.link.protocol import AddRequest
from kvasir.models.product_weights import product_weights
from kvasir.process.progress import progress_bar
from kvasir.process.words import count
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed


@dataclass(frozen=True)
class Measurement:
    """Figures for JSON, and lines to read."""

    figures: Figures
    lines: list[str]


def measure_throughput(config: EngineConfig, workload: OfflineWorkload, requests: int) -> Measurement:
    """Give all requests at once."""
    with closing(start_engine(config)) as engine:
        return _throughput(engine, workload, requests)


def _throughput(engine: LocalEngine, workload: OfflineWorkload, requests: int) -> Measurement:
    draw = random_requests(engine, workload)
    _check(engine.run([next(draw)], lambda done, total: None))
    asked = [next(draw) for _ in range(requests)]
    with progress_bar("requests", shown=engine.shows_results) as progress:
        run = _check(engine.run(asked, progress))
    prompt_tokens = sum(request.num_tokens for request in asked)
    figures = _described(engine) | {
        "requests": requests,
        "seconds": run.seconds,
        "requests_per_second": requests / run.seconds,
        "output_tokens_per_second": run.output_tokens / run.seconds,
        "total_tokens_per_second": (run.output_tokens + prompt_tokens) / run.seconds,
        "prompt_tokens": prompt_tokens,
        "output_tokens": run.output_tokens,
        "steps": len(run.steps),
        "step_ms": percentiles(run.steps),
        "peak_memory_bytes": _peak_memory(),
    }
    lines = [
        _title(engine),
        f"requests   {requests} in {run.seconds:.2f} s = {figures['requests_per_second']:.2f} req/s",
        f"tokens     {prompt_tokens} in, {run.output_tokens} out = {figures['output_tokens_per_second']:.1f} "
        f"output tok/s, {figures['total_tokens_per_second']:.1f} tok/s in all",
        f"memory     {_peak_memory() / 2**30:.2f} GiB at most",
        *time_lines([("step", figures["step_ms"])]),
    ]
    return Measurement(figures, lines)


def measure_latency(
    config: EngineConfig, workload: OfflineWorkload, batch_size: int, iterations: int, warmup: int = 1
) -> Measurement:
    """Run batches of the same size one after the other, each of new prompts. The first `warmup` are not counted."""
    with closing(start_engine(config)) as engine:
        return _latency(engine, workload, batch_size, iterations, warmup)


def _latency(
    engine: LocalEngine, workload: OfflineWorkload, batch_size: int, iterations: int, warmup: int
) -> Measurement:
    if batch_size > engine.settings.max_num_seqs:
        raise ConfigError(
            f"--batch-size {batch_size}: the engine takes {engine.settings.max_num_seqs} requests into a step at "
            "most; raise --max-num-seqs"
        )
    draw = random_requests(engine, workload)
    runs = []
    with progress_bar("iterations", shown=engine.shows_results) as progress:
        for iteration in range(warmup + iterations):
            runs.append(_check(engine.run([next(draw) for _ in range(batch_size)], lambda done, total: None)))
            progress(max(0, iteration + 1 - warmup), iterations)
    runs = runs[warmup:]
    times = [times for run in runs for times in run.requests.values()]
    rows = {
        "batch_ms": percentiles([run.seconds for run in runs]),
        "ttft_ms": percentiles([each.first for each in times]),
        "tpot_ms": percentiles([(each.last - each.first) / (each.tokens - 1) for each in times if each.tokens > 1]),
    }
    figures = _described(engine) | {"batch_size": batch_size, "iterations": iterations, **rows}
    use = _device_use(engine, workload, batch_size, runs, rows["tpot_ms"])
    figures |= use
    figures["peak_memory_bytes"] = _peak_memory()
    lines = [
        _title(engine),
        f"batches    {iterations} of {batch_size}, {workload.input_len} tokens in, {workload.output_len} out",
        f"memory     {_peak_memory() / 2**30:.2f} GiB at most",
        *time_lines(list(zip(("batch", "TTFT", "TPOT"), rows.values(), strict=True))),
        *_use_lines(use),
    ]
    return Measurement(figures, lines)


def _device_use(
    engine: LocalEngine,
    workload: OfflineWorkload,
    batch_size: int,
    runs: Sequence[Run],
    tpot: dict[str, float] | None,
) -> Figures:
    """Return the achieved bandwidth of decodes and operations of prefills, by medians; nothing for experts."""
    weights = product_weights(engine.model, engine.settings.dtype)
    if weights is None:
        return {}
    prefilled = statistics.median(max(times.first for times in run.requests.values()) for run in runs)
    operations = prefill_operations(weights, batch_size, batch_size * workload.input_len)
    use = {"prefill_flops": operations / prefilled}
    if tpot is not None:
        context = workload.input_len + workload.output_len // 2
        read = decode_bytes(weights, engine.groups, batch_size, context)
        use["decode_bytes_per_second"] = read / tpot["p50"] * 1000
    return use


def _use_lines(use: Figures) -> list[str]:
    lines = []
    if "decode_bytes_per_second" in use:
        lines.append(f"decode     {use['decode_bytes_per_second'] / 1e9:.1f} GB/s of weights and KV cache")
    if "prefill_flops" in use:
        lines.append(f"prefill    {use['prefill_flops'] / 1e12:.2f} TFLOP/s of products with weights")
    return lines


def random_requests(engine: LocalEngine, workload: OfflineWorkload) -> Iterator[AddRequest]:
    """Yield requests of random tokens, without end."""
    longest = workload.input_len + workload.output_len
    if longest > engine.settings.max_model_len:
        raise ConfigError(
            f"--input-len {workload.input_len} and --output-len {workload.output_len} are {longest} tokens, and "
            f"the context has {engine.settings.max_model_len}"
        )
    rng, number = random.Random(workload.seed), 0
    vocabulary = range(engine.model.vocab_size)
    while True:
        number += 1
        prompt = rng.choices(vocabulary, k=lengths(workload.input_len, workload.range_ratio, rng))
        yield AddRequest(
            request_id=f"request-{number}",
            attempt=0,
            prompt_tokens=packed(prompt),
            output_tokens=b"",
            params=SamplingParams(
                max_tokens=lengths(workload.output_len, workload.range_ratio, rng),
                seed=number,
                temperature=workload.temperature,
                ignore_eos=True,
            ),
        )


def _check(run: Run) -> Run:
    for name, times in run.requests.items():
        if times.error:
            raise CommandFailed(f"{name}: {times.error}")
    return run


def _described(engine: LocalEngine) -> Figures:
    settings = engine.settings
    return {
        "architecture": engine.model.architecture,
        "device": settings.device,
        "dtype": settings.dtype,
        "threads": settings.threads,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
    }


def _title(engine: LocalEngine) -> str:
    about, settings = _described(engine), engine.settings
    requests, tokens = count(settings.max_num_seqs, "request"), count(settings.max_num_batched_tokens, "token")
    return (
        f"engine     {about['architecture']}, {about['dtype']} on {about['device']}, "
        f"{count(settings.threads, 'thread')}, steps of up to {requests} and {tokens}"
    )


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
