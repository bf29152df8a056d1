"""Outputs of `LLM.embed`, `.classify`, `.score` and `.encode`, with vLLM's names."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

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
