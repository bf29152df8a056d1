"""`from kvasir import LLM, SamplingParams`: a model in this process, without a service; the names are vLLM's.

It is the engine of `kvasir engine` and the client of `kvasir frontend` with no link between them.

Reading order: llm.py (what users call), request_builder.py, llm_engine.py, offline_engine.py (computes the steps),
async_llm.py, beam_search.py, sampling_params.py, request_output.py, engine_options.py, engine_args.py.
"""

from kvasir.offline.async_llm import AsyncLLM
from kvasir.offline.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from kvasir.offline.engine_args import AsyncEngineArgs, EngineArgs, FlexibleArgumentParser
from kvasir.offline.llm import LLM
from kvasir.offline.llm_engine import LLMEngine
from kvasir.offline.metric_values import Counter, Gauge, Histogram, Metric, Vector
from kvasir.offline.request_builder import TextPrompt, TokensPrompt
from kvasir.offline.request_output import CompletionOutput, Logprob, RequestOutput
from kvasir.offline.sampling_params import RequestOutputKind, SamplingParams
from kvasir.offline.structured_outputs import StructuredOutputsParams

AsyncLLMEngine = AsyncLLM
"""Its older name."""

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "Counter",
    "EngineArgs",
    "FlexibleArgumentParser",
    "Gauge",
    "Histogram",
    "LLMEngine",
    "Logprob",
    "Metric",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "Vector",
]
