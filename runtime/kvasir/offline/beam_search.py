"""`LLM.beam_search`: the most likely continuations of prompts. The names are vLLM's.

frontend/generation/beam_search.py has the rules. Each step of a search is a request for one token of each beam.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kvasir.frontend.generation.beam_search import Beam, BeamSearch, candidates_of
from kvasir.link.protocol import Logprobs
from kvasir.offline.llm_engine import LLMEngine
from kvasir.offline.lora_request import AdapterOfPrompt, LoRARequest
from kvasir.offline.request_builder import PreparedRequest, Prompt, PromptOptions
from kvasir.offline.request_output import LogprobsByToken, named_logprobs
from kvasir.offline.sampling_params import SamplingParams
from kvasir.process.progress import Show
from kvasir.request.params import TOP_LOGPROBS
from kvasir.request.params import SamplingParams as EngineParams

MAX_CANDIDATES: Final = int(TOP_LOGPROBS.most)


@dataclass
class BeamSearchParams:
    """Raises ValueError for a width of 0."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    # A search draws nothing: it has no effect.
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        if self.beam_width < 1:
            raise ValueError(f"beam_width is {self.beam_width}: give 1 or more")


@dataclass
class BeamSearchSequence:
    tokens: list[int]
    """Prompt and output."""
    logprobs: list[LogprobsByToken]
    cum_logprob: float
    text: str
    """Prompt and output."""
    finish_reason: str
    stop_reason: int | str | None = None
    lora_request: LoRARequest | None = None


@dataclass
class BeamSearchOutput:
    sequences: list[BeamSearchSequence] = field(default_factory=list)
    """The best first."""


class BeamSearches:
    def __init__(self, engine: LLMEngine, params: BeamSearchParams, lora: AdapterOfPrompt | None = None) -> None:
        self._llm = engine
        self._lora = lora
        self._params = params
        self._eos = frozenset(engine.model.eos_token_ids)
        ends = frozenset[int]() if params.ignore_eos else self._eos
        self._ends = ends
        self._top = candidates_of(params.beam_width, len(ends))
        if self._top > MAX_CANDIDATES:
            most = min(MAX_CANDIDATES // 2, MAX_CANDIDATES - len(ends))
            raise ValueError(f"beam_width is {params.beam_width}: give at most {most}")

    def prepare(self, prompt: Prompt) -> PreparedRequest:
        """Raises ValueError and ApiError."""
        params = SamplingParams(temperature=0, max_tokens=self._params.max_tokens)
        return self._llm.builder.completion(prompt, params, PromptOptions(lora=self._lora))

    def run(self, requests: Sequence[PreparedRequest], at_once: int, progress: Show) -> list[BeamSearchOutput]:
        outputs: list[BeamSearchOutput] = []
        for first in range(0, len(requests), at_once):
            outputs += self._run(requests[first : first + at_once], first)
            progress(len(outputs), len(requests))
        return outputs

    def _run(self, requests: Sequence[PreparedRequest], number: int) -> list[BeamSearchOutput]:
        searches = [
            BeamSearch(
                self._params.beam_width,
                len(request.prompted.prompt_token_ids),
                request.prompted.params.max_tokens,
                self._ends,
                self._params.length_penalty,
            )
            for request in requests
        ]
        step = 0
        while any(search.live for search in searches):
            step += 1
            lives = [
                self._llm.builder.live(f"beam-{number + at}-{step}-{index}", self._continued(request, beam), 0)
                for at, (request, search) in enumerate(zip(requests, searches, strict=True))
                for index, beam in enumerate(search.live)
            ]
            scores = (delta.logprobs for delta in self._llm.engine.run(lives, lambda done, total: None))
            for search in searches:
                if search.live:
                    search.advance([_given(next(scores)) for _ in search.live])
        return [
            BeamSearchOutput([self._sequence(request.prompted.prompt_token_ids, beam) for beam in search.best])
            for request, search in zip(requests, searches, strict=True)
        ]

    def _continued(self, request: PreparedRequest, beam: Beam) -> PreparedRequest:
        params = EngineParams(max_tokens=1, seed=0, temperature=0.0, logprobs=self._top)
        prompted = replace(
            request.prompted.with_core(params=params),
            prompt_token_ids=request.prompted.prompt_token_ids + beam.token_ids,
            hashes=None,
        )
        return replace(request, prompted=prompted)

    def _sequence(self, prompt: "array[int]", beam: Beam) -> BeamSearchSequence:
        output = beam.token_ids.tolist()
        shown = output[:-1] if beam.ended and not self._params.include_stop_str_in_output else output
        stream = self._llm.detokenizer.stream([])
        tokens = prompt.tolist() + shown
        return BeamSearchSequence(
            tokens=tokens,
            logprobs=named_logprobs(output, beam.logprobs(), self._llm.detokenizer),
            cum_logprob=beam.logprob,
            text=stream.push(tokens) + stream.finish(),
            finish_reason="stop" if beam.ended else "length",
            lora_request=None if self._lora is None else self._lora.request,
        )


def _given(logprobs: Logprobs | None) -> Logprobs:
    assert logprobs is not None  # the request asks for them
    return logprobs
