"""The interface of models of all architectures, as the worker and the loader use it.

What a model can do beyond `forward` is a protocol of its own, which the worker checks with isinstance.
"""

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
    """The parameter that a checkpoint's tensor fills, or the shard of it."""

    parameter: str
    shard: str = ""
    index: int | None = None
    """Which of the layers that the parameter stacks; None: it holds one."""


class TransformerModel(Protocol):
    """A stack of layers over the paged KV cache, or the part of it that a pipeline stage computes."""

    heads: HeadShape
    hidden_size: int
    """Of the states between two layers: an Intermediate is [T, hidden_size]."""
    stage: Stage
    """The layers that this process computes: all, or those of its pipeline stage."""
    windows: tuple[int | None, ...]
    """By layer of the whole model: the length of its sliding window in tokens; None: it sees all tokens."""

    def kv_specs(self, block: BlockShape, max_model_len: int) -> Sequence[KVSpec]:
        """Return what each layer keeps in the KV cache, of the whole model on every stage.

        `block` has the model's heads.
        """
        ...

    def forward(self, batch: ForwardBatch) -> Hidden | Intermediate:
        """Compute this stage's layers and write their K and V into the caches; Intermediate if another follows."""
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
        """Take the tokens of the longest request that the KV cache can hold; the cache is empty."""
        ...


@runtime_checkable
class ReferencedLM(Protocol):
    """A model whose code is not ours, and which can compute without our attention for comparison."""

    def reference_logits(self, token_ids: Tensor) -> Tensor:
        """[T] → [T, vocab_size], of one sequence"""
        ...


class LoadableLM(Generates, Protocol):
    """One that our loader fills: an nn.Module whose parameters carry loaders."""

    def locate(self, tensor: str) -> Target | None:
        """Where a checkpoint's tensor goes; None: inference does not need it, or another pipeline stage has it.

        A tensor of no stage goes to a parameter that does not exist.
        """
        ...

    def aliases(self) -> Mapping[str, Target]:
        """Checkpoint tensors that repeat another one's place (tied weights): if present they must be equal."""
        ...

    def modules(self) -> Iterator[nn.Module]: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
