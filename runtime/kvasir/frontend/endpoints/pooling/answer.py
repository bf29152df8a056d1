"""Answers with vectors, scores and labels."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType, field


class PoolingUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingEntry(Struct):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str
    """The numbers, or their bytes in base64."""


class EmbeddingAnswer(Struct):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[EmbeddingEntry]
    usage: PoolingUsage


class PoolingEntry(Struct):
    object: Literal["pooling"]
    index: int
    data: list[float | list[float]] | str
    """A vector, the scores of the labels, or such scores for each token."""


class PoolingAnswer(Struct):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[PoolingEntry]
    usage: PoolingUsage


class ScoreEntry(Struct):
    object: Literal["score"]
    index: int
    score: float


class ScoreAnswer(Struct):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreEntry]
    usage: PoolingUsage


class RerankDocument(Struct):
    text: str


class RerankResult(Struct):
    index: int
    relevance_score: float
    document: RerankDocument | UnsetType = UNSET


class RerankAnswer(Struct):
    id: str
    model: str
    usage: PoolingUsage
    results: list[RerankResult]


class LabelEntry(Struct):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyAnswer(Struct):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[LabelEntry]
    usage: PoolingUsage


class CohereEmbeddings(Struct):
    numbers: list[list[float]] | UnsetType = field(default=UNSET, name="float")
    base64: list[str] | UnsetType = UNSET
    binary: list[list[int]] | UnsetType = UNSET
    ubinary: list[list[int]] | UnsetType = UNSET


class CohereVersion(Struct):
    version: str


class CohereUnits(Struct):
    input_tokens: int


class CohereMeta(Struct):
    api_version: CohereVersion
    billed_units: CohereUnits


class CohereEmbedAnswer(Struct):
    id: str
    embeddings: CohereEmbeddings
    texts: list[str]
    meta: CohereMeta
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"
