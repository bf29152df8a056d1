"""`from kvasir import LLM, SamplingParams`: a model in this process, without a service; the names are vLLM's.

It is the engine of `kvasir engine` and the client of `kvasir frontend` with no link between them.

Reading order: llm.py (what users call), request_builder.py, llm_engine.py, offline_engine.py (computes the steps),
async_llm.py, beam_search.py, sampling_params.py, request_output.py, engine_options.py, engine_args.py.
"""

from kvasir.offline.async_llm import AsyncLLM as AsyncLLM
from kvasir.offline.beam_search import BeamSearchOutput as BeamSearchOutput
from kvasir.offline.beam_search import BeamSearchParams as BeamSearchParams
from kvasir.offline.beam_search import BeamSearchSequence as BeamSearchSequence
from kvasir.offline.engine_args import AsyncEngineArgs as AsyncEngineArgs
from kvasir.offline.engine_args import EngineArgs as EngineArgs
from kvasir.offline.engine_args import FlexibleArgumentParser as FlexibleArgumentParser
from kvasir.offline.llm import LLM as LLM
from kvasir.offline.llm_engine import LLMEngine as LLMEngine
from kvasir.offline.metric_values import Counter as Counter
from kvasir.offline.metric_values import Gauge as Gauge
from kvasir.offline.metric_values import Histogram as Histogram
from kvasir.offline.metric_values import Metric as Metric
from kvasir.offline.metric_values import Vector as Vector
from kvasir.offline.request_builder import TextPrompt as TextPrompt
from kvasir.offline.request_builder import TokensPrompt as TokensPrompt
from kvasir.offline.request_output import CompletionOutput as CompletionOutput
from kvasir.offline.request_output import Logprob as Logprob
from kvasir.offline.request_output import RequestOutput as RequestOutput
from kvasir.offline.sampling_params import RequestOutputKind as RequestOutputKind
from kvasir.offline.sampling_params import SamplingParams as SamplingParams
from kvasir.offline.structured_outputs import StructuredOutputsParams as StructuredOutputsParams

AsyncLLMEngine = AsyncLLM
"""Its older name."""
