"""Puts an engine together: settings for this machine, a fitting context, the core, Ready."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version

from kvasir.config.hardware.machine import cpu_flags, memory_limit
from kvasir.config.lora_settings import ADAPTERS_SHARE
from kvasir.config.options import ConfigError, flag_of
from kvasir.config.resolve import ModelFacts, ResolvedEngine, resolve_engine, without_effect
from kvasir.config.settings import EngineConfig
from kvasir.engine.adapters.adapter_checks import AdapterChecks
from kvasir.engine.adapters.adapter_gate import AdapterGate
from kvasir.engine.adapters.adapter_memory import AdapterMemory
from kvasir.engine.core import EngineCore
from kvasir.engine.drafting.make_drafter import make_drafter
from kvasir.engine.grammar.grammar_gate import GrammarGate
from kvasir.engine.ingest import Ingest
from kvasir.engine.kv.kv_manager import KVManager, longest_sequence
from kvasir.engine.scheduling.admission_gates import AdmissionGate
from kvasir.engine.scheduling.rations import Ration, StageRation, WholePrompts
from kvasir.engine.scheduling.scheduler import Scheduler
from kvasir.engine.scheduling.step_drafts import Drafting
from kvasir.engine.scheduling.token_budget import TokenBudget
from kvasir.executor.executor import Executor
from kvasir.executor.executor_for import executor_for, has_worker_processes
from kvasir.hub.adapters.adapter_info import read_adapter
from kvasir.hub.model_info import ModelInfo
from kvasir.layers.kv import KVCacheConfig, keeps_own_cache
from kvasir.link.protocol import FEATURE_LORA, FEATURE_PREFIX_CACHE, FEATURE_PRIORITY, FEATURE_WAVES, Ready
from kvasir.process.progress import progress_bar, spinner
from kvasir.process.words import count
from kvasir.request.request_core import RequestKind
from kvasir.version import __version__
from kvasir.worker.device import device_facts, device_facts_of_workers
from kvasir.worker.split_refusal import check_early

log = logging.getLogger(__name__)


def resolve_settings(config: EngineConfig, model: ModelInfo) -> ResolvedEngine:
    """Return the settings without `auto`. Raises ConfigError. Imports torch only for a worker in this process."""
    in_processes = has_worker_processes(config.executor)
    device = device_facts_of_workers(config.device) if in_processes else device_facts(config.device)
    log.info("device: %s, %s, %.1f GiB", device.name, count(device.cores, "core"), device.memory_limit / 2**30)
    facts = ModelFacts(
        dtype=model.dtype, max_model_len=model.max_model_len, width=model.width, pools=model.pooling is not None
    )
    settings = resolve_engine(config, facts, device)
    log.info("settings: %s", settings)
    for text in without_effect(config, facts, device):
        log.warning("%s", text)
    if in_processes:
        check_early(model, settings)
    if settings.executor.num_workers > 1:
        log.info("the model is split over %d worker processes", settings.executor.num_workers)
        if settings.device != "cpu":
            log.warning("a split over several GPUs has not been tested: compare answers with those of one GPU")
    return settings


def fit_context(settings: ResolvedEngine, cache: KVCacheConfig, asked: int | None) -> ResolvedEngine:
    """Return settings whose longest request fits into the KV cache. Raises ConfigError if `asked` does not."""
    fitting = longest_sequence(cache, settings.max_num_batched_tokens)
    if settings.max_model_len <= fitting:
        return settings
    blocks = f"{cache.num_blocks} blocks of {settings.block_size} tokens"
    if len(cache.groups) > 1:
        blocks += f", shared by {len(cache.groups)} groups of layers,"
    more = f"give the cache more ({flag_of('kv_cache_memory_bytes')}, {flag_of('num_gpu_blocks_override')})"
    if cache.num_blocks < len(cache.groups):
        raise ConfigError(
            f"the KV cache has fewer blocks ({cache.num_blocks}) than the model has groups of layers "
            f"({len(cache.groups)}), and each request needs one for each: {more}"
        )
    if asked is not None:
        raise ConfigError(
            f"{flag_of('max_model_len')} {asked} does not fit into the KV cache: its {blocks} hold {fitting} "
            f"tokens; lower it or {more}"
        )
    log.warning(
        "the model could take %d tokens, the KV cache holds %d: the context is limited to that",
        settings.max_model_len,
        fitting,
    )
    return dataclasses.replace(settings, max_model_len=fitting)


def prepare_workers(
    executor: Executor, settings: ResolvedEngine, asked: int | None
) -> tuple[ResolvedEngine, KVCacheConfig]:
    """Allocate the KV cache of loaded workers and warm them up. `asked`: the user's context. Raises ConfigError."""
    cache = executor.kv_layout()
    settings = fit_context(settings, cache, asked)
    executor.allocate_kv_cache(cache.num_blocks, settings.max_model_len)
    executor.warm_up()
    if keeps_own_cache(cache.groups):
        settings = dataclasses.replace(settings, enable_prefix_caching=False)
    return settings, cache


def start_core(
    config: EngineConfig, settings: ResolvedEngine, model: ModelInfo, *, shown: bool
) -> tuple[EngineCore, Executor, ResolvedEngine, KVCacheConfig]:
    """Load the model for an engine without frontends. `shown`: print the progress.

    Raises ConfigError, ModelLoadError and FailureError.
    """
    executor = executor_for(settings, model)
    try:
        with progress_bar("loading weights", in_bytes=True, shown=shown) as progress:
            executor.start(progress, failed=lambda error: None)  # a step after that raises the error
        with spinner("allocating the KV cache and warming up", shown=shown):
            settings, cache = prepare_workers(executor, settings, asked=config.model.max_model_len)
            core = build_core(settings, model, cache, executor)
    except BaseException:
        executor.shutdown()
        raise
    return core, executor, settings, cache


def build_core(
    settings: ResolvedEngine,
    model: ModelInfo,
    cache: KVCacheConfig,
    executor: Executor,
    gates: Sequence[AdmissionGate] = (),
    wake: Callable[[str], None] | None = None,
) -> EngineCore:
    """Return a core, which the caller closes.

    `wake` gets the id of a request with a compiled grammar, in any thread, for `EngineCore.wake`, or "". None: the
    core waits for each grammar and adapter.
    """
    from kvasir.engine.grammar.grammars import (
        Grammars,
    )  # here, because an engine sends Hello before its slow imports

    log.info("texts end at the tokens %s", ", ".join(map(str, model.eos_token_ids)) or "that a request names")
    budget = TokenBudget(settings.max_queued_tokens)
    blocks = KVManager(
        cache, prefix_caching=settings.enable_prefix_caching, longest_chunk=settings.max_num_batched_tokens
    )
    grammars = GrammarGate(partial(Grammars, model.path, model.vocab_size, model.eos_token_ids), wake)
    adapters = _adapter_gate(settings, executor, wake)
    stages = settings.executor.pipeline_parallel_size
    rations: list[Ration] = [StageRation(executor.max_in_flight, settings.max_num_seqs)] if stages > 1 else []
    if model.pooling is not None:
        rations.append(WholePrompts())
    scheduler = Scheduler(
        blocks,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        eos_token_ids=model.eos_token_ids,
        by_priority=settings.scheduling_policy == "priority",
        long_prefill_token_threshold=settings.long_prefill_token_threshold,
        budget=budget,
        lookahead=executor.max_in_flight - 1 if stages == 1 else 0,
        gates=[grammars, *gates, *([] if adapters is None else [adapters])],
        rations=rations,
        sends_sampled=stages > 1,
        drafting=_drafting(settings, cache),
    )
    ingest = Ingest(
        model.vocab_size,
        settings.max_model_len,
        blocks.cache_block_size,
        budget,
        settings.prefix_caching_hash_algo,
        grammars,
        RequestKind.GENERATE if model.pooling is None else RequestKind.POOL,
        takes_adapters=adapters is not None,
    )
    return EngineCore(
        scheduler, executor, ingest, max_in_flight=executor.max_in_flight, grammars=grammars, adapters=adapters
    )


def _adapter_gate(
    settings: ResolvedEngine, executor: Executor, wake: Callable[[str], None] | None
) -> AdapterGate | None:
    lora = settings.lora
    if lora is None:
        return None
    read = partial(read_adapter, max_rank=lora.max_lora_rank, download_dir=settings.download_dir)
    notify = None if wake is None else partial(wake, "")  # no request: the loop only turns
    item_bytes = 4 if settings.dtype == "float32" else 2
    most_bytes = memory_limit() // ADAPTERS_SHARE // settings.data_parallel_size_local
    log.info("at most %d LoRA adapters of %.1f GiB are in memory", lora.num_in_memory, most_bytes / 2**30)
    checks = AdapterChecks(read, notify)
    memory = AdapterMemory(executor, checks, lora.num_in_memory, most_bytes=most_bytes, item_bytes=item_bytes)
    return AdapterGate(memory, lora.max_loras)


def ready_message(
    settings: ResolvedEngine, num_blocks: int, numerics: str, *, in_waves: bool, kv_address: str, weights: str
) -> Ready:
    """Return the message. `kv_address`: "" if others cannot fetch."""
    return Ready(
        block_size=settings.block_size,
        num_blocks=num_blocks,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_queued_tokens=settings.max_queued_tokens,
        features=_features(settings, in_waves),
        hash_algorithm=settings.prefix_caching_hash_algo,
        numerics=numerics,
        max_num_batched_tokens=0 if settings.long_prefill_token_threshold else settings.max_num_batched_tokens,
        kv_address=kv_address,
        weights=weights,
        max_loras=0 if settings.lora is None else settings.lora.max_loras,
        max_lora_rank=0 if settings.lora is None else settings.lora.max_lora_rank,
    )


def _drafting(settings: ResolvedEngine, cache: KVCacheConfig) -> Drafting | None:
    speculation = settings.speculation
    if speculation is None:
        return None
    if keeps_own_cache(cache.groups):
        log.warning(
            "--speculative-config has no effect: this model keeps a cache of its own, which cannot take rejected "
            "tokens back"
        )
        return None
    if not settings.batch_invariant:
        log.warning(
            "--speculative-config: without batch invariance, the last bits of the logits may differ from "
            "those of a run without speculation, and so at times a token (docs/batch-invariance.md)"
        )
    return Drafting(make_drafter(speculation), speculation.max_step_rows, speculation.disable_by_batch_size)


def _features(settings: ResolvedEngine, in_waves: bool) -> tuple[str, ...]:
    prefix_cache = (FEATURE_PREFIX_CACHE,) if settings.enable_prefix_caching else ()
    priority = (FEATURE_PRIORITY,) if settings.scheduling_policy == "priority" else ()
    lora = (FEATURE_LORA,) if settings.lora is not None else ()
    return prefix_cache + priority + lora + ((FEATURE_WAVES,) if in_waves else ())


# instruction sets that choose kernels
_PREFIXES = ("avx", "amx", "fma", "f16c", "asimd", "sve", "bf16")


def numerics_class(settings: ResolvedEngine, experts_shared_by: int) -> str:
    """Return the class: "float32 invariant tp1 pp1 cpu avx,avx2,fma kvasir 0.1.0 torch 2.9.0"."""
    executor = settings.executor
    layout = f"tp{executor.tensor_parallel_size} pp{executor.pipeline_parallel_size}"
    if executor.enable_expert_parallel:
        layout += f" ep{executor.tensor_parallel_size * experts_shared_by}"
    precision = f"{settings.dtype} fp8-kv" if settings.fp8_kv_cache else settings.dtype
    batches = "invariant" if settings.batch_invariant else "any-batch"
    return (
        f"{precision} {batches} {layout} {settings.device} {_hardware(settings)} "
        f"kvasir {__version__} torch {version('torch')}"
    )


def _hardware(settings: ResolvedEngine) -> str:
    if settings.device == "cpu":
        return ",".join(sorted(flag for flag in cpu_flags() if flag.startswith(_PREFIXES)))
    return settings.gpu_name
