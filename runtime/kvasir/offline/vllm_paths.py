"""Modules under vLLM's paths: in `from vllm.sampling_params import SamplingParams` only the first word changes.

Each has names of kvasir.offline and is made at its import.
"""

import importlib
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

_ARGS: Final = ("EngineArgs", "AsyncEngineArgs")
_METRICS: Final = ("Counter", "Gauge", "Histogram", "Metric", "Vector")
_PATHS: Final[dict[str, tuple[str, ...]]] = {
    "beam_search": ("BeamSearchOutput", "BeamSearchSequence"),
    "engine.arg_utils": _ARGS,
    "engine.async_llm_engine": ("AsyncLLMEngine",),
    "engine.llm_engine": ("LLMEngine",),
    "entrypoints": (),
    "entrypoints.llm": ("LLM",),
    "inputs": ("TextPrompt", "TokensPrompt"),
    "logprobs": ("Logprob",),
    "lora": (),
    "lora.request": ("LoRARequest",),
    "outputs": (
        *("CompletionOutput", "RequestOutput", "PoolingRequestOutput", "PoolingOutput"),
        *("EmbeddingOutput", "ClassificationOutput", "ScoringOutput"),
    ),
    "pooling_params": ("PoolingParams",),
    "sampling_params": ("BeamSearchParams", "RequestOutputKind", "SamplingParams", "StructuredOutputsParams"),
    "sequence": ("Logprob",),
    "utils": ("FlexibleArgumentParser",),
    "utils.argparse_utils": ("FlexibleArgumentParser",),
    "v1": (),
    "v1.engine": (),
    "v1.engine.async_llm": ("AsyncLLM",),
    "v1.engine.llm_engine": ("LLMEngine",),
    "v1.metrics": (),
    "v1.metrics.reader": _METRICS,
}
# missing paths of vLLM, and why
_MISSING: Final = {
    "assets": "images and audio are not supported yet",
    "multimodal": "images and audio are not supported yet",
}


def spec_of(name: str) -> ModuleSpec | None:
    """Return the spec of one of vLLM's modules, or None.

    Raises ModuleNotFoundError for a missing feature.
    """
    path = name.removeprefix("kvasir.")
    if (reason := _MISSING.get(path.partition(".")[0])) is not None:
        raise ModuleNotFoundError(f"No module named {name!r}: {reason}", name=name)
    if path not in _PATHS:
        return None
    return ModuleSpec(name, _Loader(_PATHS[path]), is_package=any(each.startswith(path + ".") for each in _PATHS))


class _Loader(Loader):
    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system make an empty module."""

    def exec_module(self, module: ModuleType) -> None:
        if self._names:
            offline = importlib.import_module("kvasir.offline")
            vars(module).update({name: getattr(offline, name) for name in self._names})
