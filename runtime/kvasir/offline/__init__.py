"""`from kvasir import LLM, SamplingParams`: a model in this process, without a service; the names are vLLM's.

It is the engine of `kvasir engine` and the client of `kvasir frontend` with no link between them.

Reading order: llm.py (what users call), offline_engine.py (runs the requests of a call), sampling_params.py,
request_output.py, engine_options.py.
"""

from kvasir.offline.llm import LLM
from kvasir.offline.request_output import CompletionOutput, Logprob, RequestOutput
from kvasir.offline.sampling_params import SamplingParams
from kvasir.offline.structured_outputs import StructuredOutputsParams

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestOutput", "SamplingParams", "StructuredOutputsParams"]
