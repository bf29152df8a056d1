"""The interface of models: abilities beyond `forward` are protocols, which the worker checks with isinstance."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from kvasir.layers.attention import HeadShape
from kvasir.layers.kv import BlockShape, KVSpec
from kvasir.models.forward_batch import ForwardBatch, Hidden, Intermediate
from kvasir.parallel.stage import Stage


@dataclass(frozen=True)
class Target:
    """The parameter, or its shard, that a checkpoint's tensor fills."""

    parameter: str
    shard: str = ""
    index: int | None = None
    """Index of a stacked layer; None: there is one."""


class TransformerModel(Protocol):
    """A stack of layers over the paged KV cache, or a pipeline stage of it."""

    heads: HeadShape
    # Of the states between two layers: an Intermediate is [T, hidden_size].
    hidden_size: int
    stage: Stage
    # By layer of the whole model: its sliding window in tokens; None: all tokens.
    windows: tuple[int | None, ...]

    def kv_specs(self, block: BlockShape, max_model_len: int) -> Sequence[KVSpec]:
        """Return what each layer of the whole model keeps in the KV cache. `block` has the model's heads."""
        ...

    def forward(self, batch: ForwardBatch) -> Hidden | Intermediate:
        """Compute this stage's layers and write K and V into the caches. Intermediate if another stage follows."""
        ...


@runtime_checkable
class Generates(TransformerModel, Protocol):
    """A model that predicts the next token."""

    vocab_size: int

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] → [R, vocab_size]; on the last stage only."""
        ...


@runtime_checkable
class FitsContext(Protocol):
    """A model that computes in another way for long contexts (LongRoPE)."""

    def fit_context(self, context: int) -> None:
        """Compute for requests of at most this length from now on. The cache is empty."""
        ...


@runtime_checkable
class ReferencedLM(Protocol):
    """A model that can also compute without our attention, for comparison."""

    def reference_logits(self, token_ids: Tensor) -> Tensor:
        """[T] → [T, vocab_size], of one sequence"""
        ...


class LoadableLM(Generates, Protocol):
    """An nn.Module whose parameters carry loaders."""

    def locate(self, tensor: str) -> Target | None:
        """Return the place of a checkpoint's tensor; None: it has no use on this stage.

        A tensor that no stage has gets a parameter that does not exist.
        """
        ...

    def aliases(self) -> Mapping[str, Target]:
        """Return checkpoint tensors that must equal the one of another target (tied weights)."""
        ...

    def modules(self) -> Iterator[nn.Module]: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
