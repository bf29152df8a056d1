# ruff: noqa: F403, F405
"""Kvasir: serves large language models on Kubernetes. `LLM` runs a model in this process (see kvasir.offline)."""

import sys

from kvasir.version import __version__ as __version__

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ClassificationOutput",
    "CompletionOutput",
    "Counter",
    "EmbeddingOutput",
    "EngineArgs",
    "FlexibleArgumentParser",
    "Gauge",
    "Histogram",
    "LLMEngine",
    "LoRARequest",
    "Logprob",
    "Metric",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "Vector",
]

TYPE_CHECKING = False  # importing typing would take more time than the rest of this module
if TYPE_CHECKING:
    from kvasir.offline import *


def __getattr__(name: str) -> object:
    """Import the offline API at its first use: every process imports this package."""
    if name not in __all__:
        raise AttributeError(f"module 'kvasir' has no attribute {name!r}")
    import importlib

    try:
        found: object = getattr(importlib.import_module("kvasir.offline"), name)
        return found
    except ModuleNotFoundError as error:
        advice = "pip install 'kvasir-serve[frontend,engine]'"
        raise ImportError(f"kvasir.{name} needs the package {error.name}: {advice}", name=error.name) from error


class _VLLMPaths:
    """Finds modules that only vLLM has, for programs whose imports were changed from vllm to kvasir."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> object:
        if not name.startswith("kvasir."):
            return None
        from kvasir.offline.vllm_paths import spec_of

        return spec_of(name)


sys.meta_path.append(_VLLMPaths)  # type: ignore[arg-type]  # the last one: it is asked for missing modules only
