"""What the worker and the loader need of a model, whatever its architecture."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from kvasir.layers.attention import AttentionPlan, HeadShape, KVCache


@dataclass(frozen=True)
class Target:
    """The parameter that a checkpoint's tensor fills, or the shard of it."""

    parameter: str
    shard: str = ""


class CausalLM(Protocol):
    """A decoder that predicts the next token."""

    num_layers: int
    heads: HeadShape
    vocab_size: int
    windows: frozenset[int]
    """Lengths of the sliding windows that layers attend in, in tokens; empty: every layer sees all."""

    def hidden_states(
        self, token_ids: Tensor, positions: Tensor, caches: Sequence[KVCache], plan: AttentionPlan
    ) -> Tensor:
        """token_ids, positions: [T] → [T, hidden], normalised; K and V go into the layers' caches."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] → [R, vocab_size]"""
        ...


@runtime_checkable
class ReferencedLM(Protocol):
    """A model whose code is not ours, and which can compute without our attention for comparison."""

    def reference_logits(self, token_ids: Tensor) -> Tensor:
        """[T] → [T, vocab_size], of one sequence"""
        ...


class LoadableLM(CausalLM, Protocol):
    """One that our loader fills: an nn.Module whose parameters carry loaders."""

    def locate(self, tensor: str) -> Target | None:
        """Where a checkpoint's tensor goes; None: it is known to hold nothing that inference needs."""
        ...

    def aliases(self) -> Mapping[str, Target]:
        """Checkpoint tensors that repeat another one's place (tied weights): if present they must be equal."""
        ...

    def modules(self) -> Iterator[nn.Module]: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
