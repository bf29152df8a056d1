"""One model on one device.

Call order: load → kv_layout → allocate_kv_cache → warm_up → execute, once per step.
"""

import gc
import logging
import time
from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import nn

from kvasir.config.options import ConfigError
from kvasir.config.resolve import ResolvedEngine
from kvasir.hub.model_info import ModelInfo
from kvasir.kernels.triton.device_support import FP8, can_compile
from kvasir.layers.adapter_slots import AdapterSlots
from kvasir.layers.attention import KVScales
from kvasir.layers.kv import KVCacheConfig, KVGroup, block_bytes, groups_of_stage, make_groups
from kvasir.layers.moe.sparse_moe import SparseMoE
from kvasir.layers.parameter import Placement
from kvasir.models.causal_lm import FitsContext, Generates, LoadableTransformer, ReferencedLM
from kvasir.models.load_model import load_kv_scales, load_model
from kvasir.parallel.parallel_state import SINGLE, ParallelState
from kvasir.process.words import count
from kvasir.worker.adapters.adapter_store import AdapterStore
from kvasir.worker.batch.inputs import InputBuilder
from kvasir.worker.batch.request_table import RequestTable
from kvasir.worker.dummy import drafted_steps, dummy_steps, kernel_steps, longest_chunk, most_drafted_rows
from kvasir.worker.kv_memory.block_bytes import BlockBytes
from kvasir.worker.kv_memory.cache_memory import (
    allocate,
    block_bytes_of,
    block_shape,
    captured_bytes,
    check_backends,
    check_fits_memory,
    profile_gpu,
    take_ahead,
    usable_blocks,
)
from kvasir.worker.kv_memory.huge_pages import collapse
from kvasir.worker.launch.decode_graphs import CudaRecorder
from kvasir.worker.launch.host_copy import HostCopies
from kvasir.worker.launch.launched_step import LaunchedStep
from kvasir.worker.model_runner import ModelRunner
from kvasir.worker.reference_check import check_against_reference
from kvasir.worker.stage_link import StageLink
from kvasir.worker.step import NAN_COMPUTED, AwaitLateInput, StepInput, StepOutput
from kvasir.worker.worker_calls import worker_call

log = logging.getLogger(__name__)

# Long enough for attention to split it.
_SPLIT_CONTEXT: Final = 8192


class Worker:
    """Raises ModelLoadError (an unusable checkpoint) and ConfigError (too little memory) during its start."""

    def __init__(self, settings: ResolvedEngine, model: ModelInfo, parallel: ParallelState = SINGLE) -> None:
        torch.set_num_threads(settings.threads)
        self._settings = settings
        self._info = model
        device, dtype = torch.device(settings.device), getattr(torch, settings.dtype)
        lora = settings.lora
        self._placement = Placement(
            device,
            dtype,
            parallel,
            settings.batch_invariant,
            scheme=model.weight_scheme,
            adapters=None if lora is None else AdapterSlots(lora.max_loras, lora.max_lora_rank, device),
        )
        self.adapters = None if lora is None else AdapterStore()
        self._groups: tuple[KVGroup, ...] = ()
        self._kv_dtype = FP8 if settings.fp8_kv_cache else dtype
        self._kv_scales: dict[int, KVScales] = {}
        # For this pipeline stage.
        self._own_groups: tuple[KVGroup, ...] = ()
        self._table: RequestTable | None = None
        self._model: Generates | None = None
        self._expert_layers: list[SparseMoE] = []
        self._runner: ModelRunner | None = None
        self._ahead: Iterator[int] = iter(())

    def load(self, progress: Callable[[int, int], None]) -> None:
        # `progress`: bytes done, total.
        settings = self._settings
        model = load_model(self._info, self._placement, settings.max_model_len, progress, settings.load_format)
        if settings.fp8_kv_cache:
            self._kv_scales = load_kv_scales(self._info, model, settings.load_format)
        check_against_reference(model, self._placement)
        if self._placement.device.type == "cpu":
            collapse()
        self._model = model
        if self.adapters is not None:
            if self._placement.device.type != "cpu" and not can_compile(self._placement.device):
                raise ConfigError("--enable-lora: Triton cannot compile for this GPU: leave the option out")
            if not isinstance(model, LoadableTransformer):
                raise ConfigError(
                    f"--enable-lora: {self._info.architecture} is computed by transformers' code, which takes no "
                    "adapters: leave the option out, or merge the adapter into the model"
                )
            self.adapters.open(model, text_only=bool(self._info.multimodal))
        if isinstance(model, nn.Module):
            self._expert_layers = [layer for layer in model.modules() if isinstance(layer, SparseMoE)]
        if any(layer.experts.waits_for_device for layer in self._expert_layers):
            log.warning("quantised experts are computed one by one, and without CUDA graphs: steps are slow")
        self._prepare_rows(model)

    @worker_call
    def kv_layout(self) -> KVCacheConfig:
        """Return the groups of all layers, and the set number of KV blocks, or as many as fit."""
        assert self._groups, "load comes first"
        settings = self._settings
        available = settings.kv_cache_memory_bytes
        if available is None and settings.num_blocks is None:
            available = profile_gpu(settings.gpu_memory_utilization, self._largest_step, self._captured_bytes)
        return KVCacheConfig(self._groups, usable_blocks(settings, available or 0, self._own_groups))

    @worker_call
    def allocate_kv_cache(self, num_blocks: int, max_model_len: int) -> None:
        """Allocate blocks 0 (the null block) to num_blocks. `max_model_len` in tokens."""
        assert self._model is not None, "load comes first"
        settings = self._settings
        if isinstance(self._model, FitsContext):
            self._model.fit_context(max_model_len)
        size = (num_blocks + 1) * block_bytes(self._own_groups)
        if self._placement.device.type == "cpu":
            check_fits_memory(size, settings.data_parallel_size_local)
        self._runner = self._build_runner(self._model, num_blocks)
        log.info(
            "KV cache: %d blocks of %d tokens for %s of layers in %s, %.2f GiB",
            num_blocks,
            settings.block_size,
            count(len(self._groups), "group"),
            self._groups[0].spec.block.dtype,
            size / 2**30,
        )

    @worker_call
    def warm_up(self) -> None:
        # Otherwise the first requests wait for libraries and kernels.
        settings = self._settings
        tokens = min(settings.block_size, settings.max_model_len - 1, settings.max_num_batched_tokens)
        if tokens > 0:
            for step in dummy_steps(requests=1, tokens=tokens, decodes=1, groups=self._groups):
                _must_succeed(self.execute(step))
        if self._runner is None:
            return
        if self._placement.device.type == "cpu":
            self._ahead = take_ahead(self._runner.caches)
        else:
            requests = min(settings.max_num_seqs, settings.max_num_batched_tokens)
            for step in kernel_steps(min(settings.max_model_len, _SPLIT_CONTEXT), requests, self._groups):
                _must_succeed(self.execute(step))
        self._capture_graphs(self._runner)

    @worker_call
    def work_ahead(self) -> bool:
        """Do some milliseconds of work for later steps. Return False if nothing is left."""
        # A thread would delay a step by more than its own time.
        return next(self._ahead, 0) > 0

    def execute(self, step: StepInput, late: AwaitLateInput | None = None) -> StepOutput:
        assert self._runner is not None, "allocate_kv_cache comes first"
        return self._runner.execute(step, late)

    def launch(self, step: StepInput) -> LaunchedStep:
        assert self._runner is not None, "allocate_kv_cache comes first"
        return self._runner.launch(step)

    def block_bytes(self) -> BlockBytes | None:
        # None: on a GPU, in several workers, or in the model itself.
        assert self._runner is not None, "allocate_kv_cache comes first"
        if (
            self._placement.device.type != "cpu"
            or self._settings.executor.num_workers > 1
            or not self._runner.caches
        ):
            return None
        return block_bytes_of(self._runner.caches)

    def empty_pass(self) -> None:
        # Without tokens, for other engines that share experts.
        with torch.inference_mode():
            for layer in self._expert_layers:
                layer.forward_empty()

    def close(self) -> None:
        if self.adapters is not None:
            self.adapters.close()
        self._runner = self._model = self._table = self.adapters = None
        self._expert_layers, self._ahead = [], iter(())
        gc.collect()  # modules have reference cycles
        if self._placement.device.type == "cuda":
            torch.cuda.empty_cache()

    @worker_call
    def check_idle(self) -> None:
        assert self._table is not None, "load comes first"
        assert len(self._table) == 0, f"{len(self._table)} rows are taken and the engine has no request"

    def _prepare_rows(self, model: Generates) -> None:
        settings = self._settings
        block = block_shape(model.heads, settings.block_size, self._kv_dtype)
        self._groups = make_groups(model.kv_specs(block, settings.max_model_len))
        check_backends(self._groups, model.heads, self._placement)
        self._own_groups = groups_of_stage(self._groups, model.stage.layers)
        self._table = RequestTable(
            settings.max_num_seqs,
            settings.max_model_len,
            settings.block_size,
            kv_groups=len(self._groups),
            eos_token_ids=[token for token in self._info.eos_token_ids if token < self._info.vocab_size],
            samples=model.stage.last,
        )

    def _build_runner(self, model: Generates, num_blocks: int) -> ModelRunner:
        assert self._table is not None, "load comes first"
        speculation = self._settings.speculation
        inputs = InputBuilder(
            self._table,
            self._placement,
            groups=self._own_groups,
            heads=model.heads,
            windows=model.windows,
            vocab_size=model.vocab_size,
            max_tokens=self._settings.max_num_batched_tokens,
            max_drafts=0 if speculation is None else speculation.max_step_rows,
            samples=model.stage.last,
            sizes=self._graph_sizes(model),
        )
        config = KVCacheConfig(self._own_groups, num_blocks)
        caches = allocate(config, model.heads, self._placement, self._kv_scales)
        link = StageLink(model.hidden_size, self._placement)
        device = self._placement.device
        recorder = CudaRecorder(device) if inputs.sizes else None
        return ModelRunner(
            model,
            self._table,
            inputs,
            caches,
            link,
            HostCopies(device),
            recorder,
            self.adapters,
            self._placement.adapters,
        )

    def _graph_sizes(self, model: Generates) -> tuple[int, ...]:
        # Steps that wait for other processes cannot be captured.
        alone = model.stage.first and model.stage.last and self._placement.parallel.data.size == 1
        waits = any(layer.experts.waits_for_device for layer in self._expert_layers)
        return self._settings.graph_sizes if alone and not waits and not isinstance(model, ReferencedLM) else ()

    def _capture_graphs(self, runner: ModelRunner) -> None:
        began, sizes = time.monotonic(), runner.graph_sizes
        if sizes:
            runner.capture_graphs(sizes)
            log.info(
                "captured %s of up to %d rows in %.1f s",
                count(len(sizes), "CUDA graph"),
                max(sizes),
                time.monotonic() - began,
            )

    def _captured_bytes(self) -> int:
        assert self._model is not None
        runner = self._build_runner(self._model, num_blocks=0)
        sizes = runner.graph_sizes
        return captured_bytes(lambda: runner.capture_graphs(sizes[-1:]), len(sizes)) if sizes else 0

    def _largest_step(self) -> None:
        assert self._model is not None
        settings, groups = self._settings, self._groups
        requests = min(settings.max_num_seqs, settings.max_num_batched_tokens)
        tokens = min(settings.max_num_batched_tokens // requests, settings.max_model_len)
        runner = self._build_runner(self._model, num_blocks=0)
        # The most logits.
        for step in dummy_steps(requests, tokens, decodes=0, groups=groups):
            _must_succeed(runner.execute(step))
        if (rows := most_drafted_rows(settings, groups)) > requests:
            for step in drafted_steps(rows, groups):
                _must_succeed(runner.execute(step))
        chunk = min(settings.max_num_batched_tokens, settings.max_model_len)
        # The most K, V and masks.
        for step in longest_chunk(chunk, settings.max_model_len, groups):
            _must_succeed(runner.execute(step))


def _must_succeed(output: StepOutput) -> None:
    # Plain parameters: if they fail, every request would. NaN may come from the dummy token alone.
    causes = [failure for failure in output.failed.values() if failure != NAN_COMPUTED]
    if causes:
        raise RuntimeError(f"a dummy step failed: {causes[0]}")
