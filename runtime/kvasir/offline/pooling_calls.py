"""The calls of an LLM that makes vectors or scores."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvasir.client.collector import Delta
from kvasir.client.input.input_processor import InputProcessor
from kvasir.client.input.pooling_input import PoolingInput, PoolingText, TextForm
from kvasir.client.input.prompted import Prompted
from kvasir.hub.pooling_info import CLASSIFY
from kvasir.offline.request_builder import Prompt, listed, parts_of
from kvasir.request.pooling_params import PoolingParams as EngineParams


@dataclass(frozen=True)
class PoolingParams:
    """vLLM's: `use_activation` for scores; `dimensions` and `normalize` for vectors."""

    truncate_prompt_tokens: int | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None


Run = Callable[[Sequence[Prompted]], list[Delta]]


@dataclass(frozen=True)
class Vector:
    token_ids: list[int]
    numbers: list[float]


class PoolingCalls:
    """`run` computes requests, in their order."""

    def __init__(self, input: InputProcessor, run: Run) -> None:
        self._pooling = input.pooling
        self._run = run

    @property
    def input(self) -> PoolingInput:
        """Raises ValueError for a model that generates."""
        if self._pooling is None:
            raise ValueError(
                "this LLM generates text: give LLM(..., task='embed') for vectors, or a model that makes vectors "
                "or scores"
            )
        return self._pooling

    def check_task(self, task: str, call: str) -> None:
        """Raise ValueError if the model is served for another task."""
        if self.input.info.task != task:
            raise ValueError(
                f"LLM.{call} needs a model for the task {task}, and this one is for {self.input.info.task}"
            )

    def prompts(self, prompts: Prompt | Sequence[Prompt], params: PoolingParams) -> list[Vector]:
        texts: list[PoolingText] = []
        for prompt in listed(prompts):
            text, token_ids, _ = parts_of(prompt)
            texts.append((text or "") if token_ids is None else token_ids)
        return self._compute(texts, params)

    def scores(self, left: Sequence[str], right: Sequence[str], params: PoolingParams) -> list[Vector]:
        """Return one number for each pair. One text on the left fits any number of texts."""
        if not right or len(left) not in (1, len(right)):
            raise ValueError(f"{len(left)} and {len(right)} texts: give one and any number, or as many in both")
        firsts = list(left) * len(right) if len(left) == 1 else list(left)
        info = self.input.info
        if info.task == CLASSIFY:
            if len(info.labels) != 1:
                raise ValueError(f"a pair needs one score, and this model scores {len(info.labels)} labels")
            return self._compute(list(zip(firsts, right, strict=True)), params)
        found = self._compute([*left, *right], PoolingParams(normalize=None if info.dot_similarity else True))
        heads = found[: len(left)] if len(left) > 1 else found[:1] * len(right)
        return [
            Vector(one.token_ids + other.token_ids, [sum(map(float.__mul__, one.numbers, other.numbers))])
            for one, other in zip(heads, found[len(left) :], strict=True)
        ]

    def _compute(self, texts: Sequence[PoolingText], params: PoolingParams) -> list[Vector]:
        self.input.check_dimensions(params.dimensions)
        wanted = EngineParams(params.dimensions, params.normalize, params.use_activation is not False)
        tokens = self.input.encode(texts, TextForm(keep=params.truncate_prompt_tokens), "prompts")
        deltas = self._run([self.input.prepare(each, wanted) for each in tokens])
        return [
            Vector(each.token_ids, array("f", delta.pooled or b"").tolist())
            for each, delta in zip(tokens, deltas, strict=True)
        ]
