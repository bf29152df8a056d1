"""Kvasir: serves large language models on Kubernetes. `LLM` runs a model in this process (see kvasir.offline)."""

__version__ = "0.1.0"

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestOutput", "SamplingParams", "StructuredOutputsParams"]

TYPE_CHECKING = False  # importing typing would take more time than the rest of this module
if TYPE_CHECKING:
    from kvasir.offline import (
        LLM,
        CompletionOutput,
        Logprob,
        RequestOutput,
        SamplingParams,
        StructuredOutputsParams,
    )


def __getattr__(name: str) -> object:
    """Import the offline API when it is first used: every process imports this package, and few need an engine."""
    if name not in __all__:
        raise AttributeError(f"module 'kvasir' has no attribute {name!r}")
    import importlib

    try:
        found: object = getattr(importlib.import_module("kvasir.offline"), name)
        return found
    except ModuleNotFoundError as error:
        advice = "pip install 'kvasir-serve[frontend,engine]'"
        raise ImportError(f"kvasir.{name} needs the package {error.name}: {advice}", name=error.name) from error
