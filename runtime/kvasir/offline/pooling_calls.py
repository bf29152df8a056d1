"""The calls of an LLM that makes vectors or scores."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from kvasir.client.input.input_processor import InputProcessor
from kvasir.client.input.pooling_input import PoolingInput, PoolingText, TextForm
from kvasir.client.input.prompted import Prompted
from kvasir.client.live_request import Delta
from kvasir.hub.pooling.pooling_info import CLASSIFY, EMBED
from kvasir.offline.request_builder import Prompt, listed, parts_of
from kvasir.request.pool_params import PoolParams

Output = TypeVar("Output")


@dataclass(frozen=True)
class PoolingRequestOutput(Generic[Output]):
    request_id: str
    outputs: Output
    prompt_token_ids: list[int]
    finished: bool = True
    num_cached_tokens: int = 0


@dataclass(frozen=True)
class EmbeddingOutput:
    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(frozen=True)
class ClassificationOutput:
    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass(frozen=True)
class ScoringOutput:
    score: float


@dataclass(frozen=True)
class PoolingOutput:
    data: npt.NDArray[np.float32]


@dataclass(frozen=True)
class PoolingParams:
    """vLLM's: `use_activation` for scores; `dimensions` and `normalize` for vectors."""

    truncate_prompt_tokens: int | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None


Prompts = Prompt | Sequence[Prompt]
Embedded = list[PoolingRequestOutput[EmbeddingOutput]]
Classified = list[PoolingRequestOutput[ClassificationOutput]]
Scored = list[PoolingRequestOutput[ScoringOutput]]
Encoded = list[PoolingRequestOutput[PoolingOutput]]
Run = Callable[[Sequence[Prompted]], list[Delta]]


@dataclass(frozen=True)
class _Computed:
    token_ids: list[int]
    numbers: list[float]


class PoolingCalls:
    """`run` computes requests, in their order; `numbers` name the outputs."""

    def __init__(self, input: InputProcessor, run: Run, numbers: Iterator[int]) -> None:
        self._pooling = input.pooling
        self._run = run
        self._numbers = numbers

    def embed(self, prompts: Prompts, params: PoolingParams | None) -> Embedded:
        self._check_task(EMBED, "embed")
        return [self._output(each, EmbeddingOutput(each.numbers)) for each in self._prompts(prompts, params)]

    def classify(self, prompts: Prompts, params: PoolingParams | None) -> Classified:
        self._check_task(CLASSIFY, "classify")
        if self._input.info.by_token:
            raise ValueError(
                "LLM.classify needs a score for each input, and this model scores each token: use encode"
            )
        return [self._output(each, ClassificationOutput(each.numbers)) for each in self._prompts(prompts, params)]

    def score(self, one: str | Sequence[str], other: str | Sequence[str], params: PoolingParams | None) -> Scored:
        left, right = ([each] if isinstance(each, str) else list(each) for each in (one, other))
        scores = self._scores(left, right, params or PoolingParams())
        return [self._output(each, ScoringOutput(each.numbers[0])) for each in scores]

    def encode(self, prompts: Prompts, params: PoolingParams | None, task: str | None) -> Encoded:
        if task is not None:
            self._check_task(task, "encode")
        computed = self._prompts(prompts, params)
        return [self._output(each, PoolingOutput(self._data(each))) for each in computed]

    def _data(self, computed: _Computed) -> npt.NDArray[np.float32]:
        pooling = self._input
        if not pooling.info.by_token:
            return np.array(computed.numbers, np.float32)
        rows = pooling.scores_by_token(array("f", computed.numbers), computed.token_ids)
        return np.array(rows, np.float32).reshape(-1, len(pooling.info.labels))

    @property
    def _input(self) -> PoolingInput:
        if self._pooling is None:
            raise ValueError(
                "this LLM generates text: give LLM(..., task='embed') for vectors, or a model that makes vectors "
                "or scores"
            )
        return self._pooling

    def _check_task(self, task: str, call: str) -> None:
        info = self._input.info
        if not info.computes(task):
            raise ValueError(f"LLM.{call} needs a model for the task {task}, and this one is for {info.task}")

    def _output(self, computed: _Computed, output: Output) -> PoolingRequestOutput[Output]:
        return PoolingRequestOutput(str(next(self._numbers)), output, computed.token_ids)

    def _prompts(self, prompts: Prompts, params: PoolingParams | None) -> list[_Computed]:
        texts: list[PoolingText] = []
        for prompt in listed(prompts):
            text, token_ids, _ = parts_of(prompt)
            texts.append((text or "") if token_ids is None else token_ids)
        return self._compute(texts, params or PoolingParams())

    def _scores(self, left: Sequence[str], right: Sequence[str], params: PoolingParams) -> list[_Computed]:
        if not right or len(left) not in (1, len(right)):
            raise ValueError(f"{len(left)} and {len(right)} texts: give one and any number, or as many in both")
        firsts = list(left) * len(right) if len(left) == 1 else list(left)
        info = self._input.info
        if info.task == CLASSIFY:
            if len(info.labels) != 1 or info.by_token:
                scored = "each token" if info.by_token else f"{len(info.labels)} labels"
                raise ValueError(f"a pair needs one score, and this model scores {scored}")
            return self._compute(list(zip(firsts, right, strict=True)), params)
        found = self._compute([*left, *right], PoolingParams(normalize=None if info.dot_similarity else True))
        heads = found[: len(left)] if len(left) > 1 else found[:1] * len(right)
        return [
            _Computed(one.token_ids + other.token_ids, [sum(map(mul, one.numbers, other.numbers))])
            for one, other in zip(heads, found[len(left) :], strict=True)
        ]

    def _compute(self, texts: Sequence[PoolingText], params: PoolingParams) -> list[_Computed]:
        self._input.check_dimensions(params.dimensions)
        wanted = PoolParams(params.dimensions, params.normalize, params.use_activation is not False)
        tokens = self._input.encode(texts, TextForm(keep=params.truncate_prompt_tokens), "prompts")
        deltas = self._run([self._input.prepare(each, wanted) for each in tokens])
        return [
            _Computed(each.token_ids, array("f", delta.pooled or b"").tolist())
            for each, delta in zip(tokens, deltas, strict=True)
        ]
