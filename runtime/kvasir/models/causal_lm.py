"""The interface of models. Abilities beyond `forward` are protocols, checked with isinstance."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from kvasir.layers.attention import HeadShape
from kvasir.layers.kv import BlockShape, KVSpec
from kvasir.models.forward_batch import ForwardBatch, Hidden, Intermediate
from kvasir.parallel.stage import Stage
from kvasir.request.pool_params import PoolParams


@dataclass(frozen=True)
class Target:
    """The parameter, or its shard, that a checkpoint's tensor fills."""

    parameter: str
    shard: str = ""
    # Index of a stacked layer; None: there is one.
    index: int | None = None


class TransformerModel(Protocol):
    """A stack of layers over the paged KV cache, or a pipeline stage of it."""

    heads: HeadShape
    # An Intermediate is [T, hidden_size].
    hidden_size: int
    stage: Stage
    # By layer of the whole model: its sliding window in tokens; None: all tokens.
    windows: tuple[int | None, ...]

    def kv_specs(self, block: BlockShape, max_model_len: int) -> Sequence[KVSpec]:
        """Return the KV cache of each layer of the whole model. `block` has the model's heads."""
        ...

    def forward(self, batch: ForwardBatch) -> Hidden | Intermediate:
        """Compute this stage and write K and V into the caches. Intermediate if another stage follows."""
        ...


@runtime_checkable
class Generates(TransformerModel, Protocol):
    vocab_size: int

    def logits(self, hidden: Tensor) -> Tensor:
        # [R, hidden] → [R, vocab_size]; on the last stage only.
        ...


@runtime_checkable
class FitsContext(Protocol):
    """A model that computes in another way for long contexts (LongRoPE)."""

    def fit_context(self, context: int) -> None:
        # The KV cache is empty. `context` in tokens.
        ...


@runtime_checkable
class KeepsRequests(Protocol):
    """A model with a cache of its own for each request."""

    def forget(self, row: int) -> None:
        # The request that had this row of the table has ended, or starts again.
        ...


@runtime_checkable
class ReferencedLM(Protocol):
    """A model that can also compute without our attention, for comparison."""

    def reference_logits(self, token_ids: Tensor) -> Tensor:
        # One sequence: [T] → [T, vocab_size].
        ...


@runtime_checkable
class Pools(TransformerModel, Protocol):
    """A model that makes a vector or scores of each whole prompt, without a KV cache."""

    # Tokens read earlier ones only.
    is_causal: bool
    # Numbers of a vector.
    size: int

    def pool(self, hidden: Hidden, lengths: Tensor, params: Sequence[PoolParams]) -> list[Tensor]:
        """Return a vector [size or less] in float32 for each prompt. `lengths` [B] of the prompts in hidden [T]."""
        ...


@runtime_checkable
class LoadableTransformer(TransformerModel, Protocol):
    """An nn.Module whose parameters carry loaders."""

    def locate(self, tensor: str) -> Target | None:
        """Return the place of a checkpoint's tensor. None: this stage does not use it.

        A tensor that no stage has gets a missing parameter.
        """
        ...

    def aliases(self) -> Mapping[str, Target]:
        """Return tensors that must equal another target's tensor (tied weights)."""
        ...

    def modules(self) -> Iterator[nn.Module]: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...


class LoadableLM(LoadableTransformer, Generates, Protocol):
    """A model that generates, before its weights are loaded."""
