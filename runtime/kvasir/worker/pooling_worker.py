"""PoolingWorker: a model that makes vectors or scores, on one device. It keeps nothing between steps."""

import gc
import logging
from collections.abc import Callable

import torch

from kvasir.config.resolve import ResolvedEngine
from kvasir.hub.model_info import ModelInfo
from kvasir.layers.kv import KVCacheConfig, KVGroup, NoKVCache
from kvasir.layers.parameter import Placement
from kvasir.models.causal_lm import FitsContext, Pools
from kvasir.models.load_model import load_pooling
from kvasir.parallel.parallel_state import SINGLE, ParallelState
from kvasir.request.params import SamplingParams
from kvasir.request.pool_params import MAX_POOLED_BYTES, PoolParams
from kvasir.request.tokens import packed
from kvasir.worker.kv_memory.block_bytes import BlockBytes
from kvasir.worker.kv_memory.cache_memory import block_shape
from kvasir.worker.kv_memory.huge_pages import collapse
from kvasir.worker.launch.launched_step import LaunchedStep
from kvasir.worker.pooling_runner import PoolingRunner
from kvasir.worker.step import AwaitLateInput, NewRow, ScheduledRow, StepInput, StepOutput
from kvasir.worker.worker_calls import worker_call

log = logging.getLogger(__name__)


class PoolingWorker:
    """Has the operations of `Worker`, and raises its errors."""

    def __init__(self, settings: ResolvedEngine, model: ModelInfo, parallel: ParallelState = SINGLE) -> None:
        torch.set_num_threads(settings.threads)
        self._settings = settings
        self._info = model
        device, dtype = torch.device(settings.device), getattr(torch, settings.dtype)
        self._placement = Placement(device, dtype, parallel, settings.batch_invariant, scheme=model.weight_scheme)
        self._model: Pools | None = None
        self._runner: PoolingRunner | None = None

    def load(self, progress: Callable[[int, int], None]) -> None:
        settings = self._settings
        model = load_pooling(self._info, self._placement, settings.max_model_len, progress, settings.load_format)
        by_token = self._info.pooling is not None and self._info.pooling.by_token
        size = model.size * (settings.max_model_len if by_token else 1)
        if size * 4 > MAX_POOLED_BYTES:
            advice = ": lower --max-model-len" if by_token else ""
            raise ValueError(f"answers of {size} numbers are longer than {MAX_POOLED_BYTES // 4}{advice}")
        if self._placement.device.type == "cpu":
            collapse()
        self._model = model
        self._runner = PoolingRunner(model, self._placement.device)

    @worker_call
    def kv_layout(self) -> KVCacheConfig:
        assert self._model is not None, "load comes first"
        block = block_shape(self._model.heads, self._settings.block_size, self._placement.dtype)
        return KVCacheConfig((KVGroup(NoKVCache(block), ()),), num_blocks=1)

    @worker_call
    def allocate_kv_cache(self, num_blocks: int, max_model_len: int) -> None:
        if isinstance(self._model, FitsContext):
            self._model.fit_context(max_model_len)

    @worker_call
    def warm_up(self) -> None:
        # Otherwise the first requests wait for libraries and kernels.
        longest = self._settings.max_model_len if self._placement.device.type == "cuda" else 16
        tokens = packed([0] * min(longest, self._settings.max_model_len))
        row = NewRow("warm-up", tokens, len(tokens) // 4, SamplingParams(max_tokens=1, seed=0), PoolParams())
        scheduled = ScheduledRow("warm-up", 0, row.num_prompt_tokens, [[]])
        self.execute(StepInput(finished=[], new=[row], scheduled=[scheduled]))

    @worker_call
    def work_ahead(self) -> bool:
        return False

    def execute(self, step: StepInput, late: AwaitLateInput | None = None) -> StepOutput:
        assert self._runner is not None, "load comes first"
        return self._runner.execute(step)

    def launch(self, step: StepInput) -> LaunchedStep:
        raise NotImplementedError("the executor calls execute")

    def block_bytes(self) -> BlockBytes | None:
        return None

    def empty_pass(self) -> None:
        return

    @worker_call
    def check_idle(self) -> None:
        return

    def close(self) -> None:
        self._model = self._runner = None
        gc.collect()  # modules have reference cycles
        if self._placement.device.type == "cuda":
            torch.cuda.empty_cache()
