"""`kvasir fit MODEL`: the memory that a model needs and the requests that fit, before anything is started."""

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from kvasir.config.hardware.device_facts import DeviceFacts, cpu_facts
from kvasir.config.hardware.gpu_types import GpuType, gpu_type
from kvasir.config.options import ConfigError, OptionParser
from kvasir.config.parsers import argument_type
from kvasir.config.resolve import ModelFacts, ResolvedEngine, resolve_engine
from kvasir.config.sections import add_sections, from_sections
from kvasir.config.settings import EngineConfig
from kvasir.process.words import count

if TYPE_CHECKING:
    from kvasir.hub.model_info import ModelInfo
    from kvasir.layers.kv import KVCacheConfig, KVGroup
    from kvasir.worker.kv_memory.model_sizes import ModelSizes

CONTEXT_BYTES: Final = 2**29  # about, of CUDA and its libraries
_SPLITS: Final = (1, 2, 4, 8, 16)
_GIB: Final = 2**30
_SECTIONS: Final = ("model", "device", "cache", "scheduler", "executor")
_LENGTHS: Final = (1024, 8192, 32768)


def parser() -> OptionParser:
    result = OptionParser(
        prog="kvasir fit",
        usage="kvasir fit MODEL [--gpu TYPE] [option …]",
        description="Compute the memory of weights and KV cache from a model's config.json, and how many requests "
        "fit. No weights are read, and no GPU is needed.",
    )
    result.add_argument("model", metavar="MODEL", help="hf://org/name[@revision], a directory, or demo://")
    result.add_argument(
        "--gpu",
        type=argument_type(gpu_type),
        metavar="TYPE",
        help="H100, H200, L4 and others, or a memory such as 80Gi [default: the CPU of this machine]",
    )
    add_sections(result, EngineConfig, _SECTIONS, without=("device",))
    return result


def run(args: argparse.Namespace) -> int:
    from kvasir.hub.located_model import read_model
    from kvasir.models.model_load_error import ModelLoadError

    gpu: GpuType | None = args.gpu
    device = {"device": "cpu" if gpu is None else "cuda"}
    config = from_sections(EngineConfig, args, _SECTIONS, model={"source": args.model}, device=device)
    facts = cpu_facts() if gpu is None else gpu.facts()
    model = read_model(config.model)
    try:
        for line in _lines(config, model, facts, gpu):
            print(line)
    except ModelLoadError as error:
        raise ConfigError(str(error)) from error
    return 0


def _lines(config: EngineConfig, model: "ModelInfo", facts: DeviceFacts, gpu: GpuType | None) -> Iterator[str]:
    from kvasir.worker.kv_memory.model_sizes import model_sizes

    settings = _settings(config, model, facts)
    sizes = model_sizes(model, settings)
    method = model.weight_scheme.method
    quantised = f" ({method})" if method else ""
    yield f"model      {model.architecture}, {settings.dtype}, up to {settings.max_model_len} tokens"
    each = f" on each of {settings.executor.tensor_parallel_size} GPUs" if _is_split(settings) else ""
    yield f"weights    {_size(sizes.weight_bytes)}{quantised}{each}"
    if model.pooling is not None:
        return
    yield from (f"KV cache   {text}" for text in _group_texts(sizes.groups))
    problem: ConfigError | None = None
    try:
        yield from _room(settings, sizes, facts)
        yield from _speed(model, settings, sizes, gpu)
    except ConfigError as error:
        problem = error
    if gpu is not None:
        yield from _splits(config, model, facts)
    if problem is not None:
        raise problem


def _settings(config: EngineConfig, model: "ModelInfo", facts: DeviceFacts) -> ResolvedEngine:
    about = ModelFacts(model.dtype, model.max_model_len, model.width, model.pooling is not None)
    return resolve_engine(config, about, facts)


def _is_split(settings: ResolvedEngine) -> bool:
    return settings.executor.tensor_parallel_size > 1


def available_bytes(settings: ResolvedEngine, sizes: "ModelSizes", facts: DeviceFacts) -> int:
    """Return the bytes that are left for KV blocks: on a CPU as set, on a GPU about what a start measures."""
    if settings.kv_cache_memory_bytes is not None:
        return settings.kv_cache_memory_bytes
    used = sizes.weight_bytes + sizes.step_bytes + graph_bytes(settings) + CONTEXT_BYTES
    return int(facts.memory_limit * settings.gpu_memory_utilization) - used


def graph_bytes(settings: ResolvedEngine) -> int:
    from kvasir.worker.kv_memory.cache_memory import BYTES_OF_GRAPH

    return len(settings.graph_sizes) * BYTES_OF_GRAPH


def kv_cache(settings: ResolvedEngine, sizes: "ModelSizes", facts: DeviceFacts) -> "KVCacheConfig":
    """Return the KV cache that fits. Raises ConfigError if none does."""
    from kvasir.layers.kv import KVCacheConfig
    from kvasir.worker.kv_memory.cache_memory import usable_blocks

    available = available_bytes(settings, sizes, facts)
    return KVCacheConfig(sizes.groups, usable_blocks(settings, available, sizes.groups))


def _group_texts(groups: Sequence["KVGroup"]) -> Iterator[str]:
    from kvasir.layers.kv import PerRequest, SlidingWindow, block_bytes

    block = groups[0].spec.block
    for group in groups:
        spec = group.spec
        if isinstance(spec, PerRequest):
            yield f"{spec.request_bytes / 2**20:.2f} MiB per request, and the model's own cache"
            continue
        window = f", at most {spec.window} tokens of a request" if isinstance(spec, SlidingWindow) else ""
        size = block_bytes(groups) / block.block_size / 2**10
        yield f"{size:g} KiB per token in {count(len(group.layers), 'layer')} ({block.dtype}){window}"


def _room(settings: ResolvedEngine, sizes: "ModelSizes", facts: DeviceFacts) -> Iterator[str]:
    from kvasir.engine.kv.kv_manager import longest_sequence, requests_that_fit
    from kvasir.layers.kv import block_bytes

    cache = kv_cache(settings, sizes, facts)
    kv_bytes = cache.num_blocks * block_bytes(cache.groups)
    if facts.kind == "cpu" and sizes.weight_bytes + kv_bytes > facts.memory_limit:
        raise ConfigError(
            f"weights and KV cache need {_size(sizes.weight_bytes + kv_bytes)}, and this machine has "
            f"{_size(facts.memory_limit)}: give another device with --gpu, or --quantization"
        )
    chunk = settings.max_num_batched_tokens
    longest = min(longest_sequence(cache, chunk), settings.max_model_len)
    if facts.kind == "cuda" and settings.kv_cache_memory_bytes is None:
        share = f"{settings.gpu_memory_utilization:g} of {facts.memory_limit / _GIB:.1f} GiB of {facts.name}"
        rest = sizes.step_bytes + graph_bytes(settings) + CONTEXT_BYTES
        yield f"device     {share}; about {_size(rest)} for the largest step, CUDA and its graphs"
    yield f"room       {_size(kv_bytes)}: {cache.num_blocks} blocks of {settings.block_size} tokens"
    shortened = (
        f", of {settings.max_model_len} that the model could take" if longest < settings.max_model_len else ""
    )
    yield f"longest    {longest} tokens{shortened}"
    for length in sorted({*(each for each in _LENGTHS if each < longest), longest}):
        fitting = min(requests_that_fit(cache, length, chunk), settings.max_num_seqs)
        limit = " (--max-num-seqs)" if fitting == settings.max_num_seqs else ""
        yield f"requests   {fitting} of {length} tokens at one time{limit}"


def _speed(model: "ModelInfo", settings: ResolvedEngine, sizes: "ModelSizes", gpu: GpuType | None) -> Iterator[str]:
    from kvasir.benchmark.device_use import decode_bytes
    from kvasir.models.product_weights import product_weights

    weights = product_weights(model, settings.dtype)
    if gpu is None or not gpu.bandwidth or weights is None or _is_split(settings):
        return
    bound = gpu.bandwidth * 1e9 / decode_bytes(weights, sizes.groups, 1, 1024)
    yield f"speed      at most {bound:.0f} tokens/s of one request, by the memory's {gpu.bandwidth} GB/s"


def _splits(config: EngineConfig, model: "ModelInfo", facts: DeviceFacts) -> Iterator[str]:
    from kvasir.models.model_load_error import ModelLoadError
    from kvasir.parallel.parallel_state import UnevenExperts, UnevenSplit
    from kvasir.worker.kv_memory.model_sizes import model_sizes

    texts = []
    for ranks in _SPLITS:
        executor = dataclasses.replace(config.executor, tensor_parallel_size=ranks)
        settings = _settings(dataclasses.replace(config, executor=executor), model, facts)
        try:
            cache = kv_cache(settings, model_sizes(model, settings), facts)
        except (ConfigError, ModelLoadError, UnevenExperts, UnevenSplit, ValueError) as error:
            texts.append(f"{ranks} does not fit" if "KV cache" in str(error) else f"{ranks} is not possible")
            continue
        texts.append(f"{ranks} has {cache.num_blocks} blocks")
    yield f"GPUs       --tensor-parallel-size {'; '.join(texts)}"


def _size(size: int) -> str:
    return f"{size / _GIB:.2f} GiB" if size >= _GIB else f"{size / 2**20:.1f} MiB"
