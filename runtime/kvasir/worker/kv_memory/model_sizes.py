"""The sizes of a model by its config alone: it is built without memory, on torch's device "meta"."""

from dataclasses import dataclass, replace

import torch
from torch import nn

from kvasir.config.resolve import ResolvedEngine
from kvasir.hub.model_info import ModelInfo
from kvasir.kernels.triton.device_support import FP8
from kvasir.layers.kv import KVGroup, make_groups
from kvasir.layers.linear import Linear, VocabHead
from kvasir.layers.linear_method import PackedMethod, PlainMethod, unquantised_method
from kvasir.layers.parameter import Placement
from kvasir.models.build_pooling import build_pooling
from kvasir.models.causal_lm import TransformerModel
from kvasir.models.check_ranks import Planned
from kvasir.models.load_model import check_whole
from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.registry import ARCHITECTURES
from kvasir.parallel.parallel_state import ParallelState
from kvasir.worker.kv_memory.cache_memory import block_shape


@dataclass(frozen=True)
class ModelSizes:
    """The memory of one worker."""

    weight_bytes: int
    step_bytes: int  # about, of the largest step
    groups: tuple[KVGroup, ...]


def model_sizes(info: ModelInfo, settings: ResolvedEngine) -> ModelSizes:
    """Return the sizes of the first tensor-parallel rank. Raises ModelLoadError and ConfigError."""
    parallel = ParallelState(Planned(0, settings.executor.tensor_parallel_size))
    dtype: torch.dtype = getattr(torch, settings.dtype)
    placement = Placement(torch.device("meta"), dtype, parallel, scheme=info.weight_scheme)
    model = _build(info, placement, settings.max_model_len)
    if _packs(settings, dtype) or info.weight_scheme.reads_tied_head:
        untied = replace(info, config={**info.config, "tie_word_embeddings": False})
        model = _with_own_head(model, _build(untied, placement, settings.max_model_len), settings, dtype)
    assert isinstance(model, nn.Module)
    block = block_shape(model.heads, settings.block_size, FP8 if settings.fp8_kv_cache else dtype)
    return ModelSizes(
        weight_bytes=sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())),
        step_bytes=_step_bytes(model, info, settings, dtype.itemsize),
        groups=make_groups(model.kv_specs(block, settings.max_model_len)),
    )


def _build(info: ModelInfo, placement: Placement, context: int) -> TransformerModel:
    if info.pooling is not None:
        return build_pooling(info, placement, context)
    build = ARCHITECTURES.get(info.architecture)
    if build is None:
        check_whole(info.architecture, placement.parallel)
        raise ModelLoadError(
            f"{info.architecture} is computed by transformers' code, whose memory is known after its start only"
        )
    return build(info.config, placement, context)


def _packs(settings: ResolvedEngine, dtype: torch.dtype) -> bool:
    if settings.device != "cpu":
        return False
    real = Placement(torch.device("cpu"), dtype, batch_invariant=settings.batch_invariant)
    return isinstance(unquantised_method(real), PackedMethod)


def _with_own_head(
    tied: TransformerModel, untied: TransformerModel, settings: ResolvedEngine, dtype: torch.dtype
) -> TransformerModel:
    # A head that is packed, or quantised when it is loaded, does not share the memory of the embedding.
    assert isinstance(untied, nn.Module)
    heads = [each for each in untied.modules() if isinstance(each, VocabHead)]
    is_plain = all(isinstance(head.method, PlainMethod) for head in heads) and not _packs(settings, dtype)
    return tied if is_plain else untied


def _step_bytes(model: TransformerModel, info: ModelInfo, settings: ResolvedEngine, itemsize: int) -> int:
    # The widest layer has its input, its output and the output's activation. Logits are computed in float32 too.
    assert isinstance(model, nn.Module)
    layers = [each for each in model.modules() if isinstance(each, Linear) and not isinstance(each, VocabHead)]
    widest = max((layer.num_weights for layer in layers), default=0) // model.hidden_size
    tokens = min(settings.max_num_batched_tokens, settings.max_model_len * settings.max_num_seqs)
    logits = settings.max_num_seqs * info.vocab_size * (itemsize + 2 * torch.float32.itemsize)
    return tokens * (4 * model.hidden_size + 3 * widest // 2) * itemsize + logits
