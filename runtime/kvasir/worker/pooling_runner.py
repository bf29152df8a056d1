"""PoolingRunner: computes a step of whole prompts, and returns a vector or scores for each."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvasir.layers.attention import KVCache
from kvasir.layers.attention_backends.packed_plan import PackedPlan
from kvasir.models.causal_lm import Pools
from kvasir.models.forward_batch import ForwardBatch, Hidden
from kvasir.request.pool_params import PoolParams
from kvasir.worker.step import NAN_COMPUTED, StepInput, StepOutput


class PoolingRunner:
    def __init__(self, model: Pools, device: torch.device) -> None:
        self._model = model
        self._device = device
        # Layers ask a cache for its group only.
        heads = model.heads
        self._caches = [KVCache(torch.empty((0, 2, heads.kv_heads, 1, heads.head_dim)))] * len(model.windows)

    @torch.inference_mode()
    def execute(self, step: StepInput) -> StepOutput:
        if not step.scheduled:
            return StepOutput([])
        rows = {new.request_id: new for new in step.new}
        prompts = [rows[each.request_id] for each in step.scheduled]
        params = [each.pooling or PoolParams() for each in prompts]
        pooled, failed = {}, {}
        vectors = self._vectors([np.frombuffer(each.tokens, "<u4") for each in prompts], params)
        for place, vector in enumerate(vectors):
            if np.isfinite(vector).all():
                pooled[place] = vector.astype("<f4", copy=False).tobytes()
            else:
                failed[place] = NAN_COMPUTED
        return StepOutput([[] for _ in prompts], failed=failed, pooled=pooled)

    def _vectors(
        self, tokens: Sequence[npt.NDArray[np.uint32]], params: Sequence[PoolParams]
    ) -> list[npt.NDArray[np.float32]]:
        model, device = self._model, self._device
        lengths = [len(each) for each in tokens]
        there = torch.from_numpy(_inputs(tokens, params)).to(device)
        plan = PackedPlan(lengths, model.heads, causal=model.is_causal, device=device)
        has_types = any(each.second_text is not None for each in params)
        types = there[2] if has_types else None
        hidden = model.forward(ForwardBatch(there[0], there[1], {0: plan}, self._caches, token_types=types))
        assert isinstance(hidden, Hidden), "there is one stage"
        vectors = model.pool(hidden, torch.tensor(lengths, device=device), params)
        return [each.numpy() for each in _on_host(vectors)]


def _inputs(tokens: Sequence[npt.NDArray[np.uint32]], params: Sequence[PoolParams]) -> npt.NDArray[np.int64]:
    # [3, T]: ids, positions, token types
    inputs = np.zeros((3, sum(map(len, tokens))), np.int64)
    inputs[0] = np.concatenate(tokens)
    start = 0
    for some, each in zip(tokens, params, strict=True):
        end = start + len(some)
        inputs[1, start:end] = np.arange(len(some))
        if each.second_text is not None:
            inputs[2, start + each.second_text : end] = 1
        start = end
    return inputs


def _on_host(vectors: list[Tensor]) -> list[Tensor]:
    if vectors[0].device.type == "cpu":
        return vectors
    # One copy for all.
    return list(torch.cat(vectors).cpu().split([len(each) for each in vectors]))
