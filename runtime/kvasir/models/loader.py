"""Streams files with weights into a model.

Threads copy from mapped files, each rank its own parts. Every tensor must find its parameter and every parameter
must be filled, so that a model never runs on uninitialised memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from kvasir.hub.text_part import text_tensor
from kvasir.hub.weight_scheme import UNQUANTISED, WeightScheme
from kvasir.hub.weights import tensor_bytes
from kvasir.layers.layout import WHOLE
from kvasir.layers.parameter import Source, weight_loader_of
from kvasir.layers.quantised.parts_method import part_name
from kvasir.models.causal_lm import LoadableTransformer, Target
from kvasir.models.checkpoints.bitsandbytes_scales import nested_scales
from kvasir.models.checkpoints.checkpoint import CheckpointTensor, Origin
from kvasir.models.checkpoints.open_checkpoint import open_checkpoint
from kvasir.models.kv_scales import is_kv_scale
from kvasir.models.model_load_error import ModelLoadError, UnknownTensor

# The wait for a disk overlaps with copying; more threads gain nothing.
_MAX_THREADS: Final = 4


def load_weights(
    model: LoadableTransformer,
    files: Sequence[Path],
    progress: Callable[[int, int], None],
    scheme: WeightScheme = UNQUANTISED,
    *,
    text_only: bool = False,
) -> None:
    """Fill the model's parameters. `progress` is called with the bytes done and the total.

    All ranks report the bytes of the whole checkpoint; skipped bytes count as done. `text_only`: the text
    model of a multimodal checkpoint.

    Raises ModelLoadError, which names tensor or parameter, for anything missing, unknown, misshaped or
    unreadable.
    """
    parameters = dict(model.named_parameters())
    aliases = model.aliases()
    sources: dict[Target, Origin] = {}
    duplicates: list[tuple[Origin, Target]] = []
    done, total = 0, tensor_bytes(files)
    progress(done, total)
    inference = torch.is_inference_mode_enabled()  # the mode belongs to a thread

    @torch.inference_mode(inference)
    def fill(tensor: CheckpointTensor) -> int:
        name = text_tensor(tensor.origin.name) if text_only else tensor.origin.name
        if name is None or is_kv_scale(name) or (written := scheme.parameter_name(name)) is None:
            return tensor.nbytes  # kv_scales.py reads scales of the KV cache
        if name in aliases:
            duplicates.append((tensor.origin, aliases[name]))
        elif (target := _located(model, parameters, written)) and not _is_spare(parameters, target, tensor, scheme):
            source = nested_scales(name, tensor, scheme, partial(_read, files)) or tensor
            _fill(parameters.get(target.parameter), target, tensor.origin, source)
            sources[target] = tensor.origin
        return tensor.nbytes

    with ThreadPoolExecutor(min(_MAX_THREADS, torch.get_num_threads()), "load-weights") as threads:
        for file in files:
            with open_checkpoint(file, scheme) as tensors:
                for size in threads.map(fill, tensors):
                    done += size
                    progress(done, total)
    progress(total, total)
    _check_complete(parameters)
    for duplicate, target in duplicates:
        _check_equal(duplicate, sources[target], parameters[target.parameter], target)


def _located(model: LoadableTransformer, parameters: Mapping[str, nn.Parameter], name: str) -> Target | None:
    target = model.locate(name)
    if target is None or not target.shard or target.parameter in parameters:
        return target
    part = part_name(target.parameter, target.shard)  # the parts of this fused layer have different formats
    return replace(target, parameter=part, shard=WHOLE) if part in parameters else target


def _is_spare(
    parameters: Mapping[str, nn.Parameter], target: Target, tensor: CheckpointTensor, scheme: WeightScheme
) -> bool:
    # Some programs write the groups of inputs in order, and biases of 0, for all layers.
    if scheme == UNQUANTISED or target.parameter in parameters:
        return False
    last = target.parameter.rpartition(".")[2]
    if last in ("g_idx", "weight_g_idx"):
        groups = tensor[slice(None),]
        return bool((groups[1:] >= groups[:-1]).all())
    return last == "bias" and not tensor[slice(None),].any()


def _read(files: Sequence[Path], name: str) -> Tensor:
    for file in files:
        with open_checkpoint(file) as tensors:
            for tensor in tensors:
                if tensor.origin.name == name:
                    return tensor[slice(None),]
    raise ModelLoadError(f"the checkpoint holds no tensor {name!r}: is it complete?")


@contextmanager
def _opened(origin: Origin) -> Iterator[CheckpointTensor]:
    with open_checkpoint(origin.file) as tensors:
        yield next(tensor for tensor in tensors if tensor.origin == origin)


def _fill(parameter: nn.Parameter | None, target: Target, origin: Origin, source: Source) -> None:
    if parameter is None:
        raise UnknownTensor(f"{origin} has no place in this model: does config.json belong to it?")
    try:
        weight_loader_of(parameter)(parameter, source, target.shard, target.index)
    except ValueError as error:
        raise ModelLoadError(f"{origin} does not fit: {error}") from error


def _check_complete(parameters: Mapping[str, nn.Parameter]) -> None:
    missing = [
        f"{name} ({shard})" if shard else name
        for name, parameter in parameters.items()
        for shard in sorted(weight_loader_of(parameter).missing)
    ]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ModelLoadError(f"the checkpoint holds no weights for {shown}: is it complete?")


def _check_equal(duplicate: Origin, original: Origin, parameter: nn.Parameter, target: Target) -> None:
    parts = weight_loader_of(parameter).parts(target.shard, target.index)
    with _opened(duplicate) as one, _opened(original) as other:
        if one.shape == other.shape and all(torch.equal(one[part], other[part]) for part in parts):
            return
    raise ModelLoadError(
        f"config.json ties the embeddings, but {duplicate} differs from {original.name!r}: "
        "set tie_word_embeddings to false"
    )
