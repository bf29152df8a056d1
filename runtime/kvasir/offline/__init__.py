"""A model in this process, without a service: `from kvasir import LLM, SamplingParams`. The names are vLLM's.

Begin with llm.py (for users) and llm_engine.py (the engine of `kvasir engine` and the client of `kvasir frontend`,
with no link between them).
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
from kvasir.offline.lora_request import LoRARequest as LoRARequest
from kvasir.offline.metric_values import Counter as Counter
from kvasir.offline.metric_values import Gauge as Gauge
from kvasir.offline.metric_values import Histogram as Histogram
from kvasir.offline.metric_values import Metric as Metric
from kvasir.offline.metric_values import Vector as Vector
from kvasir.offline.pooling_calls import ClassificationOutput as ClassificationOutput
from kvasir.offline.pooling_calls import EmbeddingOutput as EmbeddingOutput
from kvasir.offline.pooling_calls import PoolingOutput as PoolingOutput
from kvasir.offline.pooling_calls import PoolingParams as PoolingParams
from kvasir.offline.pooling_calls import PoolingRequestOutput as PoolingRequestOutput
from kvasir.offline.pooling_calls import ScoringOutput as ScoringOutput
from kvasir.offline.request_builder import TextPrompt as TextPrompt
from kvasir.offline.request_builder import TokensPrompt as TokensPrompt
from kvasir.offline.request_output import CompletionOutput as CompletionOutput
from kvasir.offline.request_output import Logprob as Logprob
from kvasir.offline.request_output import RequestOutput as RequestOutput
from kvasir.offline.sampling_params import RequestOutputKind as RequestOutputKind
from kvasir.offline.sampling_params import SamplingParams as SamplingParams
from kvasir.offline.sampling_params import StructuredOutputsParams as StructuredOutputsParams

# Its older name.
AsyncLLMEngine = AsyncLLM
