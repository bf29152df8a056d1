"""Makes a model that computes from a model's files."""

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from kvasir.hub.gguf.kept_layers import GGUF
from kvasir.hub.model_info import ModelInfo
from kvasir.hub.weight_scheme import UNQUANTISED
from kvasir.hub.weights import weight_files
from kvasir.layers.attention import KVScales
from kvasir.layers.linear import finish_layers
from kvasir.layers.parameter import Placement
from kvasir.layers.quantised.product_report import describe_products
from kvasir.models.build_pooling import build_pooling
from kvasir.models.causal_lm import Generates, LoadableTransformer, Pools
from kvasir.models.dummy_weights import fill_with_random_numbers
from kvasir.models.kv_scales import read_kv_scales
from kvasir.models.loader import load_weights
from kvasir.models.model_load_error import ModelLoadError, UnknownTensor, UnsupportedSetting
from kvasir.models.registry import ARCHITECTURES
from kvasir.parallel.parallel_state import ParallelState

_TEXT_ONLY: Final = "%s: only the text model is loaded; images and sound are rejected"

log = logging.getLogger(__name__)

Model = TypeVar("Model", bound=LoadableTransformer)


def load_model(
    info: ModelInfo,
    placement: Placement,
    context: int,
    progress: Callable[[int, int], None],
    load_format: str = "safetensors",
) -> Generates:
    """Load a model, or the part of this rank and pipeline stage.

    `context`: the longest request in tokens. `progress` is called with the bytes done and the total.
    `load_format` "dummy": random weights. Raises ModelLoadError (an unusable checkpoint or config.json) and
    HubError (missing files).
    """
    build = ARCHITECTURES.get(info.architecture)
    if build is None:
        check_whole(info.architecture, placement.parallel)
        if load_format == "dummy":
            raise ModelLoadError(
                f"--load-format dummy: {info.architecture} is computed by transformers' code, which is checked "
                "with the model's own weights: use --load-format safetensors"
            )
        return _with_transformers(info, placement, progress)
    try:
        return _filled(build(info.config, placement, context), info, progress, load_format)
    except (UnsupportedSetting, UnknownTensor) as unsupported:
        if info.multimodal:  # transformers would load all parts
            raise
        unsupported.__traceback__ = None  # its frames hold the memory of the weights
        return _instead(unsupported, info, placement, progress)


def load_pooling(
    info: ModelInfo, placement: Placement, context: int, progress: Callable[[int, int], None], load_format: str
) -> Pools:
    """Load a model that makes vectors or scores, or the part of this rank. As `load_model` otherwise."""
    return _filled(build_pooling(info, placement, context), info, progress, load_format)


def load_kv_scales(info: ModelInfo, model: Generates, load_format: str) -> dict[int, KVScales]:
    """Return the scales of an fp8 KV cache by layer, of all stages; the default is 1."""
    if load_format == "dummy":
        return {}
    files = [file for file in weight_files(info.path) if file.suffix == ".safetensors"]  # others have none
    return read_kv_scales(files, len(model.windows))


def check_whole(architecture: str, parallel: ParallelState) -> None:
    """Raise ModelLoadError if a model that transformers' code computes would be split."""
    sizes = {"--tensor-parallel-size": parallel.tensor.size, "--pipeline-parallel-size": parallel.pipeline.size}
    sizes["--data-parallel-size"] = parallel.data.size
    split = [f"{option} 1" for option, size in sizes.items() if size > 1]
    if split:
        raise ModelLoadError(
            f"{architecture} is computed by transformers' code, which is not split over ranks: use "
            + " and ".join(split)
        )


def _filled(model: Model, info: ModelInfo, progress: Callable[[int, int], None], load_format: str) -> Model:
    if load_format == "dummy":
        fill_with_random_numbers(model, progress)
    else:
        text_only = bool(info.multimodal)
        if text_only:
            log.warning(_TEXT_ONLY, info.multimodal)
        load_weights(model, weight_files(info.path), progress, info.weight_scheme, text_only=text_only)
    finish_layers(model.modules())
    if info.weight_scheme != UNQUANTISED:
        method = info.weight_scheme.method
        advice = "; faster, with more memory: --quantization none" if method == GGUF else ""
        log.info("weights: %s; %s", method, describe_products(model.modules(), advice))
    return model


def _instead(
    unsupported: ModelLoadError, info: ModelInfo, placement: Placement, progress: Callable[[int, int], None]
) -> Generates:
    """Load a model of an own architecture with transformers' code. Raises the first error if that fails too."""
    try:
        check_whole(info.architecture, placement.parallel)
        model = _with_transformers(info, placement, progress)
    except ModelLoadError as error:
        raise ModelLoadError(f"{unsupported}; {error}") from error
    log.warning("Kvasir's own code for %s was not used: %s", info.architecture, unsupported)
    return model


def _with_transformers(info: ModelInfo, placement: Placement, progress: Callable[[int, int], None]) -> Generates:
    _check_scheme(info)
    if info.multimodal:
        log.warning(_TEXT_ONLY, info.multimodal)
    try:
        # A slow import, which our own architectures do not need.
        from kvasir.models.transformers_code.transformers_lm import load_with_transformers
    except ImportError as error:
        raise ModelLoadError(
            f"the model's architecture {info.architecture!r} is none of {', '.join(sorted(ARCHITECTURES))}; others "
            f"are served by transformers' code, and transformers is not there ({error}): pip install transformers"
        ) from error
    return load_with_transformers(info, placement, progress)


def _check_scheme(info: ModelInfo) -> None:
    if info.weight_scheme == UNQUANTISED:
        return
    if info.weight_scheme.method != "fp8":
        raise ModelLoadError(
            f"{info.architecture} is computed by transformers' code, and quantised weights ("
            f"{info.weight_scheme.method}) are for Kvasir's own architectures: use a checkpoint of floats or fp8"
        )
    log.warning(
        "%s is computed by transformers' code: its weights in fp8 become floats when they are loaded, and take the "
        "memory of --dtype",
        info.architecture,
    )
